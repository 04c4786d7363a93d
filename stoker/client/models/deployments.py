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
    """Stable; see the guide."""
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
    """Replicas under load."""
    min: int = 0
    """Replicas kept loaded."""


class Traffic(msgspec.Struct, kw_only=True):
    examples: bool = False
    """True keeps the last ten calls that a mirror answers differently, encrypted. The
    comparison shows them.
    """
    mirror: dict[str, int] | None = None
    """Versions that get copies of this percentage of the calls while the machine is idle.
    The copies' answers are compared and then dropped.
    """
    sticky: str = "none"
    """Value that keeps calls on the same version. `key`: the API key. `user`: the request's
    `user`. `header:<name>`: that header's value. `none`: the version is chosen at random.
    """
    weights: dict[str, int]
    """Share of the calls for each version, in whole percents that add up to 100."""


class Worker(msgspec.Struct, kw_only=True):
    cache_usage: float | None
    """Share of the KV cache in use, 0 to 1. Null if the model has no KV cache."""
    device: str
    """Device of the loaded weights: `cpu`, or `cuda:N` by the machine's numbers. Empty
    before the model is loaded, or if unknown.
    """
    device_bytes: int | None
    """Measured GPU memory, of the GPU with the largest use. Null if unknown."""
    device_held_bytes: int
    """GPU memory that the replica claims."""
    device_name: str
    """Name of the GPU. Empty on the CPU."""
    engine: str
    """Engine that runs the model now. Empty before the model is loaded."""
    id: str
    memory_bytes: int | None
    """Proportional set size, bytes."""
    outstanding: int
    """Requests sent and not yet answered."""
    pid: int | None
    progress: float
    """Progress of loading, 0 to 1."""
    recorded_passes: int | None
    """Number of recorded passes (CUDA graphs), which take less time. Null if passes are not
    recorded on the model's device.
    """
    recording_problem: str
    """Reason that no more passes are recorded. Empty if they are."""
    status: Status


class DeploymentAdapter(msgspec.Struct, kw_only=True):
    """Combination of an adapter with its base."""

    of: str
    """Model id of the base."""
    reason: str
    """Reason for the merge. Empty if the adapter is not merged."""
    sharing: str
    """`shared`: the base's replicas apply the adapter per call. `merged`: the adapter has
    replicas of its own, with merged weights.
    """


class Deployment(msgspec.Struct, kw_only=True):
    adapter: DeploymentAdapter | None
    """Null if the deployment is not an adapter."""
    adapter_of: str | None
    """For an adapter: model id of its base deployment."""
    artifact_id: str | None
    config: dict[str, Any]
    created_at: str
    desired: Desired
    """State that the owner requested."""
    device: str
    device_problem: str
    """Reason that the model runs on the CPU although the driver lists a GPU. Empty if it
    does not.
    """
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
    """Notices from the live version's last load, such as fields of the model's files that
    have no effect. Empty if there are none, or if it was not loaded yet.
    """
    object: str = "deployment"
    pipeline: str
    readiness: Readiness
    reason: Reason
    replicas: Replicas
    source: str | None
    status: Status
    """Observed status."""
    traffic: Traffic | None
    """Null if the live version receives all calls."""
    updated_at: str
    version_id: str
    """Live version, whose artifact, engine and other options this object shows."""
    workers: list[Worker]


class Latencies(msgspec.Struct, kw_only=True):
    """Milliseconds from the request to the end of its response, accurate to 5 percent."""

    p50: list[float | None]
    p90: list[float | None]
    p99: list[float | None]


class RequestCounts(msgspec.Struct, kw_only=True):
    client_error: list[int | None]
    """Invalid requests, and clients that disconnected."""
    ok: list[int | None]
    server_error: list[int | None]


class DeploymentMetrics(msgspec.Struct, kw_only=True):
    """A number for each step; null if the step has no value. The last step is not complete."""

    batch_size: list[float | None]
    """Samples or sequences per forward pass."""
    latency_ms: Latencies
    memory_bytes: list[int | None]
    object: str = "deployment.metrics"
    queue: list[int | None]
    """Maximum number of waiting and running calls."""
    replicas: list[int | None]
    """Maximum number of replicas that answered."""
    requests: RequestCounts
    start: int
    """Start of the first step, unix seconds."""
    step_s: int
    tokens: list[int | None]
    """Read and written."""


class Event(msgspec.Struct, kw_only=True):
    created_at: str
    id: str
    message: str
    object: str = "deployment.event"
    reason: Reason
    status: Status
    version_id: str | None
    """Of which version."""


class LogLines(msgspec.Struct, kw_only=True):
    data: list[str]
    """The last lines, oldest first."""
    object: str = "list"


class Model(msgspec.Struct, kw_only=True):
    capabilities: list[str] | None
    """What the model can do: `chat`, `completion`, `tools`, `reasoning`, `vision`,
    `structured_outputs`, `embeddings`, `rerank` and others. Null if unknown.
    """
    created: int
    """Unix seconds."""
    endpoints: list[str]
    """The paths that serve this model."""
    id: str
    """The model id to send as `model`."""
    max_model_len: int | None
    """Maximum tokens of prompt and answer of a language model, as its files say. Null if
    unknown. A device with little memory may have room for fewer.
    """
    object: str = "model"
    owned_by: str
    pipeline: str
    readiness: Readiness
    status: Status
