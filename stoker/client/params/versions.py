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
    """Text that must occur in one of the response's texts."""
    cosine_min: CosineMinParams | None
    """Minimum cosine similarity between the response's first vector and this one."""
    equal: Any
    """Expected response, or its text if the model generates text. Numbers may differ by
    0.0001; `id`, `created` and `usage` are ignored.
    """
    json_schema: Mapping[str, Any] | None
    """JSON schema (draft 2020-12) for the response, or for generated text that is JSON."""
    status: int
    """The HTTP status that a client would get."""
    top_label: str | None
    """The label with the highest score."""


class CheckParams(TypedDict):
    expect: ExpectParams
    name: str
    request: Mapping[str, Any]
    """Request body for the deployment's first endpoint, without `model`."""


class ChecksUpdateParams(TypedDict):
    checks: Sequence[CheckParams]
    """All checks; an empty list removes them."""


class TrialCreateParams(TypedDict, total=False):
    dtypes: Sequence[Literal["auto", "float32", "tf32", "bfloat16", "float16", "int8"]] | None
    """Only these dtypes, in addition to float32."""
    engines: Sequence[str] | None
    """Only these engines."""
    examples: Sequence[Mapping[str, Any]] | None
    """Request bodies for the deployment's first endpoint, without `model`. Every
    configuration is timed on them and its answers are compared. Default: generated
    examples.
    """


class VersionCreateParams(TypedDict, total=False):
    """Changes for a new version. Omitted fields are copied from the live version."""

    artifact_id: str | None
    """A ready artifact."""
    config: ConfigParams | None
    """Omitted options stay unchanged. Null resets an option."""
    device: str | None
    dtype: Literal["auto", "float32", "tf32", "bfloat16", "float16", "int8"] | None
    engine: Literal["auto", "openvino", "torch", "vllm", "diffusers"] | None
    note: str
    """Note for people: what changed."""
    promote: Literal["when_ready", "manual"]
    """`when_ready`: the version goes live once it passes all checks. `manual`: it waits for
    a promotion.
    """
    source: str | None
    """Model folder, instead of an artifact. It must be below a folder that the operator
    allows.
    """
    strategy: Literal["beside", "in_place"]
    """`beside`: the version loads while the live version serves. `in_place`: the live
    version is unloaded first, and calls wait.
    """
