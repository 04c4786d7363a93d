"""Observed state of deployments, replicas, machines and nodes."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from stoker.store.open_enum import OpenEnum
from stoker.wire.passes import Batches


class Status(OpenEnum):
    """Observed state of a deployment. The wanted state is stored separately in `desired`."""

    STARTING = "starting"
    READY = "ready"
    ASLEEP = "asleep"
    """Only of replicas: their GPU memory is in main memory. The next call wakes them."""
    IDLE = "idle"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"


class Reason(OpenEnum):
    """Reason for a deployment's state."""

    CREATED = "created"
    """Nothing has happened yet. Recorded by the creator of a deployment, never by a runtime."""
    REQUEST = "request"
    KEPT_LOADED = "kept_loaded"
    BACKLOG = "backlog"
    LOADED = "loaded"
    EVICTED = "evicted"
    ASLEEP = "asleep"
    """A replica's GPU memory was moved to main memory, for other models on the GPU."""
    IDLE_TIMEOUT = "idle_timeout"
    INSUFFICIENT_CREDITS = "insufficient_credits"
    STOPPED_BY_USER = "stopped_by_user"
    SERVER_STOPPING = "server_stopping"
    CHANGED = "changed"
    LOAD_FAILED = "load_failed"
    FILES_MISSING = "files_missing"
    """Files of the model are missing from the server's storage."""
    LOAD_TIMEOUT = "load_timeout"
    WORKER_LOST = "worker_lost"
    STALLED = "stalled"
    ENGINE_SET_ASIDE = "engine_set_aside"
    """An engine crashed, hung or gave wrong results with this model, and is quarantined. Another
    engine serves.
    """
    ENGINE_FAILED = "engine_failed"
    """As `ENGINE_SET_ASIDE`, but no other engine may replace it."""
    PRECISION_CHANGED = "precision_changed"
    """An answer contained NaN or infinity. The model computes in float32 from now on."""
    PRELOAD_SKIPPED = "preload_skipped"
    """The engine host did not import the model's code ahead of time, because forks could not use
    CUDA after it.
    """
    RECORDING_SKIPPED = "recording_skipped"
    """A replica ended while it recorded a CUDA graph. Later replicas do not record that graph."""
    DEVICE_UNUSABLE = "device_unusable"
    """The driver lists a GPU, but torch cannot use it. The model runs on the CPU."""
    INSUFFICIENT_MEMORY = "insufficient_memory"
    OUT_OF_MEMORY = "out_of_memory"
    MEMORY_EXCEEDED = "memory_exceeded"
    """A replica used far more memory than it had claimed, and was killed."""
    SANDBOX_OPENED = "sandbox_opened"
    """Replicas on a GPU run with an exception from the sandbox, without which CUDA does not
    start.
    """


@dataclass(frozen=True, kw_only=True)
class DeviceClaim:
    """Memory that one replica has claimed of one GPU."""

    index: int
    """Index N in the `device` setting `cuda:N`."""
    uuid: str
    name: str
    held_bytes: int
    used_bytes: int | None = None
    """Measured bytes, with CUDA's context. None if unknown."""


@dataclass(frozen=True, kw_only=True)
class ReplicaStats:
    id: str
    status: Status
    pid: int | None
    """Process id on the machine of the replica. None if it has no process of its own, or none
    yet.
    """
    outstanding: int
    """Number of unanswered calls that were sent to the replica."""
    memory_bytes: int | None
    """Proportional set size in bytes: shared pages count by their share. None if not measured
    yet.
    """
    progress: float
    """Loading progress, 0 to 1."""
    engine: str
    """Engine that runs the model now. Empty before the model is loaded."""
    cache_usage: float | None = None
    """Fraction of a language model's key-value cache that requests hold."""
    device: str = ""
    """Device of the loaded weights: `cpu`, or `cuda:N` by the machine's numbers, separated by
    commas if there are several. Empty if unknown.
    """
    device_name: str = ""
    """Name of the GPU. Empty on the CPU."""
    device_bytes: int | None = None
    """Measured bytes that the replica holds of the GPU with the largest use. None if unknown."""
    device_held_bytes: int = 0
    """Bytes that the replica has claimed of its GPUs together."""
    device_problem: str = ""
    """Reason that the model runs on the CPU although a GPU was claimed. Empty if none."""
    is_settled: bool = True
    """True if the replica has reached its full speed, with no measurements left for idle times."""
    recorded_passes: int | None = None
    """Number of CUDA graphs of the model. None if its passes are not recorded."""
    recording_problem: str = ""
    """Reason that no more passes are recorded. Empty if they are."""


@dataclass(frozen=True, kw_only=True)
class DeploymentStats:
    status: Status
    reason: Reason
    message: str
    max_replicas: int = 1
    """Maximum number of replicas under load."""
    memory_bytes: int = 0
    """Bytes of memory that one replica needs, as currently known."""
    replicas: Sequence[ReplicaStats] = ()
    calls: int = 0
    """Number of queued or running calls."""
    batches: Batches = field(default_factory=Batches)
    """Batches of all its replicas, including replicas that have ended."""


@dataclass(frozen=True, kw_only=True)
class WaitingForMemory:
    """A replica that cannot be started yet."""

    deployment_id: str
    account_id: str
    model: str
    memory_bytes: int
    """Bytes that the replica needs."""
    reason: str
    """Reason that it waits, in words."""


MIG = "MIG-"
"""Prefix of the UUIDs of MIG instances."""


@dataclass(frozen=True, kw_only=True)
class DeviceStats:
    """A GPU and the memory that replicas hold on it."""

    index: int
    """Index N in the `device` setting `cuda:N`."""
    name: str
    total_bytes: int
    budget_bytes: int
    """Bytes that all replicas together may hold on the device. 0 means that the device has
    disappeared.
    """
    held_bytes: int
    """Bytes that replicas and prepared workers have claimed."""
    uuid: str = ""
    """UUID of the GPU or of its MIG instance, as in `CUDA_VISIBLE_DEVICES`."""
    used_bytes: int | None = None
    """Bytes in use by all processes, as the driver reports them. None if unknown."""
    other_bytes: int = 0
    """Bytes held by processes that are not replicas of this server. The budget is smaller by
    them.
    """
    prepared_workers: int = 0
    """Number of processes with a context on the device that wait for a model."""


@dataclass(frozen=True, kw_only=True)
class MachineStats:
    """The machine of the replicas, and the memory that they hold. 0 means unknown or unlimited."""

    host: str = ""
    """Id that all processes with the same machine memory share. Empty if unknown."""
    cores: int = 0
    processor: str = ""
    total_bytes: int = 0
    """Total memory in bytes."""
    budget_bytes: int = 0
    """Bytes that all replicas together may hold."""
    held_bytes: int = 0
    """Bytes that replicas have claimed."""
    used_bytes: int = 0
    """Measured memory of all replicas: the sum of their proportional set sizes."""
    reserved_bytes: int = 0
    """Bytes reserved for `hot` deployments, loaded or not."""
    waiting: Sequence[WaitingForMemory] = ()
    """Waiting replicas, in order."""
    devices: Sequence[DeviceStats] = ()
    """GPUs. Empty if the machine has none, or they are not counted."""
    device_problem: str = ""
    """Reason that the driver's GPUs are unknown, in words. Empty if they are known."""
    sandbox_openings: Sequence[str] = ()
    """Exceptions from the sandbox of replicas on a GPU, in words. Empty if none are known."""


class NodeStatus(StrEnum):
    """State of a node as seen by one server."""

    READY = "ready"
    STARTING = "starting"
    """The node's engine host still imports, so replicas would wait for it."""
    DRAINING = "draining"
    """The node is about to end, and accepts no new work."""
    UNREACHABLE = "unreachable"
    """This server has no connection to the node. Other servers may have one."""


@dataclass(frozen=True, kw_only=True)
class LeaseStats:
    """A node's lease for one specification, and its replicas."""

    spec_id: str
    deployment_id: str
    """Id of the deployment, or of the trial if the specification belongs to a trial."""
    account_id: str | None
    model: str | None
    """`account_id` and `model` are None if this server does not know the specification, such as
    other servers' trials.
    """
    generation: int
    """Number that grows with each lease. A newer lease has a higher one."""
    replicas: Sequence[ReplicaStats] = ()
    """Replicas with process ids of the node's machine. Empty for an unreachable node."""


@dataclass(frozen=True, kw_only=True)
class NodeStats:
    """A machine that runs replicas for the servers of a fleet."""

    id: str
    name: str
    address: str
    """`host:port` that servers connect to."""
    status: NodeStatus
    pid: int
    """Process id of the node host on its machine."""
    version: str
    """Version of Stoker."""
    python: str
    started_at: datetime
    seen_at: datetime
    """Time of the last heartbeat, by the database's clock."""
    machine: MachineStats
    leases: Sequence[LeaseStats] = ()
    """Leases, oldest first."""
    problem: str = ""
    """Reason that the node cannot be used until it runs another release."""
