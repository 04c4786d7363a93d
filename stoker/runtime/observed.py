"""What is observed of deployments, and of what runs them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from stoker.wire.protocol import Batches


class Status(StrEnum):
    """The observed state of a deployment. What is wanted is `desired`, kept apart."""

    STARTING = "starting"
    READY = "ready"
    IDLE = "idle"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"


class Reason(StrEnum):
    """Why a deployment is in its state."""

    CREATED = "created"
    """Nothing has happened yet. Whoever makes a deployment writes it down: no runtime tells it."""
    REQUEST = "request"
    KEPT_LOADED = "kept_loaded"
    BACKLOG = "backlog"
    LOADED = "loaded"
    EVICTED = "evicted"
    IDLE_TIMEOUT = "idle_timeout"
    INSUFFICIENT_CREDITS = "insufficient_credits"
    STOPPED_BY_USER = "stopped_by_user"
    SERVER_STOPPING = "server_stopping"
    CHANGED = "changed"
    LOAD_FAILED = "load_failed"
    FILES_MISSING = "files_missing"
    """Files of the model are not where the server keeps them."""
    LOAD_TIMEOUT = "load_timeout"
    WORKER_LOST = "worker_lost"
    STALLED = "stalled"
    ENGINE_SET_ASIDE = "engine_set_aside"
    """An engine crashed, hung or was wrong with this model, and is quarantined: another serves."""
    ENGINE_FAILED = "engine_failed"
    """And no other one may take its place."""
    INSUFFICIENT_MEMORY = "insufficient_memory"
    OUT_OF_MEMORY = "out_of_memory"
    MEMORY_EXCEEDED = "memory_exceeded"
    """A replica took far more memory than it had claimed, and was ended."""


@dataclass(frozen=True, kw_only=True)
class ReplicaStats:
    id: str
    status: Status
    pid: int | None
    """Of its process on the machine that runs it; None: it has none of its own, or not yet."""
    outstanding: int
    """Calls sent to it and not yet answered."""
    memory_bytes: int | None
    """Proportional set size, bytes: shared pages count by their share. None: not measured yet."""
    progress: float
    """How far loading has come, 0 to 1."""
    engine: str
    """What runs the model now; empty before it is loaded."""
    cache_usage: float | None = None
    """The share of the key-value cache that requests hold, of language models."""
    is_settled: bool = True
    """Whether it is as fast as it will be: there is nothing left to measure in idle moments."""


@dataclass(frozen=True, kw_only=True)
class DeploymentStats:
    status: Status
    reason: Reason
    message: str
    max_replicas: int = 1
    """How many there may be under load."""
    memory_bytes: int = 0
    """What one replica needs of memory, as far as is known."""
    replicas: Sequence[ReplicaStats] = ()
    calls: int = 0
    """Calls that wait or are worked on."""
    batches: Batches = field(default_factory=Batches)
    """Of all its replicas, also of those that have ended."""


@dataclass(frozen=True, kw_only=True)
class WaitingForMemory:
    """A replica that cannot be started yet."""

    deployment_id: str
    account_id: str
    model: str
    memory_bytes: int
    """What it needs."""
    reason: str
    """Why it waits, in words."""


@dataclass(frozen=True, kw_only=True)
class DeviceStats:
    """A graphics device, and what replicas hold of it together."""

    index: int
    """As `device` names it: `cuda:N`."""
    name: str
    total_bytes: int
    budget_bytes: int
    """What replicas may hold of it together; 0: it was there, and is gone."""
    held_bytes: int
    """What they have claimed."""


@dataclass(frozen=True, kw_only=True)
class MachineStats:
    """What replicas run on, and what they hold of it together. 0: not known, or not limited."""

    host: str = ""
    """The same for all processes that share one machine's memory; empty: unknown."""
    cores: int = 0
    processor: str = ""
    total_bytes: int = 0
    """Memory that there is."""
    budget_bytes: int = 0
    """What replicas may hold of it together."""
    held_bytes: int = 0
    """What they have claimed."""
    used_bytes: int = 0
    """Measured memory of all replicas: the sum of their proportional set sizes."""
    reserved_bytes: int = 0
    """What is kept for `hot` deployments, loaded or not."""
    waiting: Sequence[WaitingForMemory] = ()
    """In their turn."""
    devices: Sequence[DeviceStats] = ()
    """None: there are none, or they are not counted."""


class NodeStatus(StrEnum):
    """How one server finds a node of its fleet."""

    READY = "ready"
    STARTING = "starting"
    """Its engine host still imports: replicas would wait for it."""
    DRAINING = "draining"
    """It is about to end, and gets nothing new."""
    UNREACHABLE = "unreachable"
    """This server has no connection to it; others may have."""


@dataclass(frozen=True, kw_only=True)
class LeaseStats:
    """A node's leave to run one specification, and what it makes of it."""

    spec_id: str
    deployment_id: str
    """A trial's id, of a specification that is tried and is no deployment's."""
    account_id: str | None
    model: str | None
    """None, both: this server does not know it, as the trials of others."""
    generation: int
    """Grows with each lease there ever was: the newer one has the higher."""
    replicas: Sequence[ReplicaStats] = ()
    """With process ids of the node's machine. None, of a node that is unreachable."""


@dataclass(frozen=True, kw_only=True)
class NodeStats:
    """A machine that runs replicas for the servers of a fleet."""

    id: str
    name: str
    address: str
    """`host:port`, where servers reach it."""
    status: NodeStatus
    pid: int
    """Of its host, on its machine."""
    version: str
    """Of Stoker."""
    python: str
    started_at: datetime
    seen_at: datetime
    """Its last sign of life, by the database's clock."""
    machine: MachineStats
    leases: Sequence[LeaseStats] = ()
    """The oldest first."""
