# `python -m tools.client_api` writes this file.
"""Responses of deployments, from the OpenAPI document."""

from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from .common import Memory, Status

if TYPE_CHECKING:
    Desired: TypeAlias = Literal["running", "stopped"] | str
else:
    Desired = str


class Notice(msgspec.Struct, kw_only=True):
    """A fact about the model that callers should know."""

    code: str
    message: str


if TYPE_CHECKING:
    Readiness: TypeAlias = Literal["cold", "warm", "hot"] | str
else:
    Readiness = str


if TYPE_CHECKING:
    Reason: TypeAlias = (
        Literal[
            "created",
            "request",
            "kept_loaded",
            "backlog",
            "loaded",
            "evicted",
            "asleep",
            "idle_timeout",
            "insufficient_credits",
            "stopped_by_user",
            "server_stopping",
            "changed",
            "load_failed",
            "files_missing",
            "load_timeout",
            "worker_lost",
            "stalled",
            "engine_set_aside",
            "engine_failed",
            "precision_changed",
            "preload_skipped",
            "recording_skipped",
            "device_unusable",
            "insufficient_memory",
            "out_of_memory",
            "memory_exceeded",
            "sandbox_opened",
        ]
        | str
    )
else:
    Reason = str


class Replicas(msgspec.Struct, kw_only=True):
    max: int = 1
    min: int = 0


class Traffic(msgspec.Struct, kw_only=True):
    examples: bool = False
    mirror: dict[str, int] | None = None
    sticky: str = "none"
    weights: dict[str, int]


class Worker(msgspec.Struct, kw_only=True):
    cache_usage: float | None
    device: str
    device_bytes: int | None
    device_held_bytes: int
    device_name: str
    engine: str
    id: str
    memory_bytes: int | None
    outstanding: int
    pid: int | None
    progress: float
    recorded_passes: int | None
    recording_problem: str
    status: Status


class DeploymentAdapter(msgspec.Struct, kw_only=True):
    """Combination of an adapter with its base."""

    of: str
    reason: str
    sharing: str


class Deployment(msgspec.Struct, kw_only=True):
    adapter: DeploymentAdapter | None
    adapter_of: str | None
    artifact_id: str | None
    config: dict[str, Any]
    created_at: str
    desired: Desired
    device: str
    device_problem: str
    dtype: str
    engine: str
    id: str
    idle_timeout_s: float
    keep_s: float
    max_queue: int
    memory: Memory
    message: str
    model: str
    notices: list[Notice]
    object: str = "deployment"
    pipeline: str
    readiness: Readiness
    reason: Reason
    replicas: Replicas
    source: str | None
    status: Status
    traffic: Traffic | None
    updated_at: str
    version_id: str
    workers: list[Worker]


class Latencies(msgspec.Struct, kw_only=True):
    """Milliseconds from the request to the end of its response, accurate to 5 percent."""

    p50: list[float | None]
    p90: list[float | None]
    p99: list[float | None]


class RequestCounts(msgspec.Struct, kw_only=True):
    client_error: list[int | None]
    ok: list[int | None]
    server_error: list[int | None]


class DeploymentMetrics(msgspec.Struct, kw_only=True):
    """A number for each step; null if the step has no value. The last step is not complete."""

    batch_size: list[float | None]
    latency_ms: Latencies
    memory_bytes: list[int | None]
    object: str = "deployment.metrics"
    queue: list[int | None]
    replicas: list[int | None]
    requests: RequestCounts
    start: int
    step_s: int
    tokens: list[int | None]


class Event(msgspec.Struct, kw_only=True):
    created_at: str
    id: str
    message: str
    object: str = "deployment.event"
    reason: Reason
    status: Status
    version_id: str | None


class LogLines(msgspec.Struct, kw_only=True):
    data: list[str]
    object: str = "list"


class Model(msgspec.Struct, kw_only=True):
    created: int
    endpoints: list[str]
    id: str
    object: str = "model"
    owned_by: str
    pipeline: str
    readiness: Readiness
    status: Status
