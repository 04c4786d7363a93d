# `python -m tools.client_api` writes this file.
"""Parameters of common, from the OpenAPI document."""

from typing import Literal, TypedDict


class ConfigParams(TypedDict, total=False):
    """Engine options; unknown ones are refused."""

    devices: int | None
    kv_cache_dtype: Literal["fp8"] | None
    quantization: Literal["fp8"] | None
    speculation: Literal["prompt_lookup", "off"] | None
    weight_format: Literal["int8", "int4"] | None


class GenerateKwargsParams(TypedDict, total=False):
    """Further options by the names of `generate`. Other names are rejected."""

    do_sample: bool | None
    early_stopping: bool | Literal["never"] | None
    length_penalty: float | None
    max_new_tokens: int | None
    min_new_tokens: int | None
    min_p: float | None
    no_repeat_ngram_size: int | None
    num_beams: int | None
    repetition_penalty: float | None
    seed: int | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    typical_p: float | None
