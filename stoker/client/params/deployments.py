# `python -m tools.client_api` writes this file.
"""Parameters of deployments, from the OpenAPI document."""

from collections.abc import Mapping
from typing import Literal, Required, TypeAlias, TypedDict

from .common import ConfigParams

Readiness: TypeAlias = Literal["cold", "warm", "hot"]


class ReplicasParams(TypedDict, total=False):
    max: int
    min: int


class DeploymentCreateParams(TypedDict, total=False):
    adapter_of: str | None
    artifact_id: str | None
    config: ConfigParams
    device: str
    dtype: Literal["auto", "float32", "tf32", "bfloat16", "float16", "int8"]
    engine: Literal["auto", "openvino", "torch", "vllm", "diffusers"]
    idle_timeout_s: float
    keep_s: float
    max_queue: int
    model: Required[str]
    pipeline: str | None
    readiness: Readiness
    replicas: ReplicasParams
    source: str | None


class ReplicasUpdateParams(TypedDict, total=False):
    max: int | None
    min: int | None


class DeploymentUpdateParams(TypedDict, total=False):
    """Changes of a deployment. Omitted or null fields stay unchanged."""

    config: ConfigParams | None
    device: str | None
    dtype: Literal["auto", "float32", "tf32", "bfloat16", "float16", "int8"] | None
    engine: Literal["auto", "openvino", "torch", "vllm", "diffusers"] | None
    idle_timeout_s: float | None
    keep_s: float | None
    max_queue: int | None
    readiness: Readiness | None
    replicas: ReplicasUpdateParams | None


class RollbackParams(TypedDict, total=False):
    version: str | None


Status: TypeAlias = Literal["starting", "ready", "asleep", "idle", "stopping", "stopped", "failed"]


class TrafficParams(TypedDict, total=False):
    examples: bool
    mirror: Mapping[str, int]
    sticky: str
    weights: Required[Mapping[str, int]]
