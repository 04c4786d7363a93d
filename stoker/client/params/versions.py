# `python -m tools.client_api` writes this file.
"""Parameters of versions, from the OpenAPI document."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

from .common import ConfigParams


class CosineMinParams(TypedDict):
    min: float
    vector: Sequence[float]


class ExpectParams(TypedDict, total=False):
    """Conditions for a response. All conditions that are set must hold."""

    contains: str | None
    cosine_min: CosineMinParams | None
    equal: Any
    json_schema: Mapping[str, Any] | None
    status: int
    top_label: str | None


class CheckParams(TypedDict):
    expect: ExpectParams
    name: str
    request: Mapping[str, Any]


class ChecksUpdateParams(TypedDict):
    checks: Sequence[CheckParams]


class TrialCreateParams(TypedDict, total=False):
    dtypes: Sequence[Literal["auto", "float32", "tf32", "bfloat16", "float16", "int8"]] | None
    engines: Sequence[str] | None
    examples: Sequence[Mapping[str, Any]] | None


class VersionCreateParams(TypedDict, total=False):
    """Changes for a new version. Omitted fields are copied from the live version."""

    artifact_id: str | None
    config: ConfigParams | None
    device: str | None
    dtype: Literal["auto", "float32", "tf32", "bfloat16", "float16", "int8"] | None
    engine: Literal["auto", "openvino", "torch", "vllm", "diffusers"] | None
    note: str
    promote: Literal["when_ready", "manual"]
    source: str | None
    strategy: Literal["beside", "in_place"]
