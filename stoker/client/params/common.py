# `python -m tools.client_api` writes this file.
"""Parameters of common, from the OpenAPI document."""

from typing import Literal, TypedDict


class ConfigParams(TypedDict, total=False):
    """Engine options; unknown ones are refused."""

    devices: int | None
    """Number of GPUs that a replica on vLLM is spread over (tensor parallelism)."""
    kv_cache_dtype: Literal["fp8"] | None
    """`fp8`: vLLM keeps keys and values in eight bits on a GPU, so that twice as many tokens
    have room. That changes the answers.
    """
    quantization: Literal["fp8"] | None
    """`fp8`: vLLM rounds the weights to eight bits when it loads them on a GPU. That halves
    their memory and changes the answers.
    """
    speculation: Literal["prompt_lookup", "off"] | None
    """How a language model on torch or OpenVINO writes several tokens in one pass.
    `prompt_lookup`, the default: guesses the next tokens from the text so far, while that
    is faster. `off`: one token at a time.
    """
    weight_format: Literal["int8", "int4"] | None
    """How a model's weights are stored on OpenVINO: rounded to eight bits, or for a language
    model to eight or four bits. Rounded weights take less memory and time, and change the
    model's answers. Until the model is converted, or if it cannot be converted, it runs
    with its original weights.
    """


class GenerateKwargsParams(TypedDict, total=False):
    """Further options by the names of `generate`. Other names are rejected."""

    do_sample: bool | None
    """Sample tokens at random instead of choosing the likeliest."""
    early_stopping: bool | Literal["never"] | None
    """Condition that ends beam search, as transformers defines it."""
    length_penalty: float | None
    """For beam search: values above 0 favour longer texts."""
    max_new_tokens: int | None
    """Maximum number of tokens to generate. Default: the model's own `max_new_tokens` or
    `max_length`, else 256, within the model's own limit.
    """
    min_new_tokens: int | None
    """Minimum number of tokens to generate."""
    min_p: float | None
    """Minimum probability of a token, as a share of the likeliest token's."""
    no_repeat_ngram_size: int | None
    """Length of token sequences that must not repeat. 0 means no limit."""
    num_beams: int | None
    """Number of beams. 1 means no beam search."""
    repetition_penalty: float | None
    """Values above 1 make repetitions of generated tokens less likely."""
    seed: int | None
    """Makes sampling repeatable, separately for each input."""
    temperature: float | None
    """Values above 1 flatten the distribution to sample from."""
    top_k: int | None
    """Sample from this many likeliest tokens. 0 means all tokens."""
    top_p: float | None
    """Sample from the likeliest tokens with this total probability."""
    typical_p: float | None
    """Sample from locally typical tokens with this total probability."""
