"""The one seam for scale. Nothing above it knows whether replicas are processes or Ray actors."""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

from stoker.runtime.metering import Meter
from stoker.wire.generation_request import AdapterName, Generation
from stoker.wire.protocol import Batches


class Readiness(StrEnum):
    COLD = "cold"
    """Scales to zero after the idle timeout; starts on request."""
    WARM = "warm"
    """Stays loaded while memory allows."""
    HOT = "hot"
    """Always loaded."""

    @property
    def stays_loaded(self) -> bool:
        return self is not Readiness.COLD


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
class DeploymentSpec:
    """What a runtime needs to know to run a deployment."""

    id: str
    """What the runtime knows it by: of a version, where a deployment has several."""
    account_id: str
    model: str
    pipeline: str
    source: str
    """Id of the artifact's live upload, or the name of an operator's folder."""
    deployment_id: str = ""
    """Whose version it is; nothing: `id` names the deployment itself. See `deployment`."""
    readiness: Readiness = Readiness.COLD
    engine: str = "auto"
    device: str = "auto"
    dtype: str = "auto"
    min_replicas: int = 0
    max_replicas: int = 1
    idle_timeout_s: float = 300.0
    max_queue: int = 256
    memory_bytes: int = 0
    """What one replica needs of memory, as far as is known: measured before, or estimated."""
    config: Mapping[str, Any] = field(default_factory=dict[str, Any])
    has_adapters: bool = False
    """Whether calls may name adapters: what runs it has a place for them."""

    @property
    def deployment(self) -> str:
        """The id of what is billed, counted and logged: all versions of a deployment alike."""
        return self.deployment_id or self.id

    @property
    def version(self) -> str:
        """The id of the version that it is; nothing: of none."""
        return self.id if self.deployment_id else ""

    def runs_like(self, other: "DeploymentSpec") -> bool:
        """Whether replicas of one can serve the other, and need as much memory."""
        return self._process == other._process

    @property
    def _process(self) -> tuple[Any, ...]:
        how = (self.engine, self.device, self.dtype, self.config, self.has_adapters)
        return (self.source, self.pipeline, *how)


class LoadError(Exception):
    """The model could not be loaded; the message is for its owner."""

    def __init__(
        self,
        message: str,
        *,
        out_of_memory: bool = False,
        lasting: bool = False,
        has_fallback: bool = False,
        reason: Reason | None = None,
    ) -> None:
        """
        Args:
            reason: where it is neither that the load failed nor that memory lacked.
            lasting: waiting changes nothing.
            has_fallback: what it was loaded with is quarantined, the next start goes without it.
        """
        super().__init__(message)
        self.out_of_memory = out_of_memory
        self.lasting = lasting
        self.has_fallback = has_fallback
        self.reason = reason


class ModelLocator(Protocol):
    """Where deployments' models lie."""

    async def folder(self, spec: DeploymentSpec, *, is_ahead: bool = False) -> Path:
        """A folder in Hugging Face format, on the machine that this is called on. It stays as long
        as a replica of the specification runs.

        Args:
            is_ahead: nobody waits for it yet: nothing else is to go for it.

        Raises `LoadError` where there is none.
        """
        ...

    async def adapters(self, spec: DeploymentSpec) -> Path:
        """The folder of those that calls of a deployment may name, each in one of its own. They
        come and go while it is used.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class Call:
    """One request to a deployment: its items are batched with those of other requests.

    `task` is one that the deployment's pipeline serves.
    """

    task: str
    items: Sequence[Any]
    parameters: Mapping[str, Any]
    single: bool
    """True: the answer is the one item's result; False: a list of results."""
    finishing: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What the task needs to make one answer of all results."""
    stream: bool = False
    """True, with `Runtime.stream`: the one item's answer comes in parts, as it is made."""
    adapter: AdapterName | None = None
    """What is to be added to the model for it."""


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

    cores: int = 0
    processor: str = ""
    total_bytes: int = 0
    """Memory that there is."""
    budget_bytes: int = 0
    """What replicas may hold of it together."""
    held_bytes: int = 0
    """What they have claimed."""
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


OnProgress = Callable[[float], None]
"""Called on the event loop; must not block."""
KEEP_ALIVE = b": keep-alive\n\n"
"""A comment in a stream of server-sent events: proxies close idle connections."""


OK, CANCELLED = "ok", "cancelled"
CANCELLED_STATUS = 499
"""nginx's, of a client that closed the connection first."""


@dataclass(frozen=True, kw_only=True)
class Served:
    """How a call went."""

    account_id: str
    deployment_id: str
    model: str
    outcome: str
    """`OK`, `CANCELLED` or the `code` of the error that it ended with."""
    status: int = 200
    """`CANCELLED_STATUS`, or that of the error."""
    waited_s: float
    """For a replica that was ready."""
    seconds: float
    """With that replica: its queue, preparing, computing."""
    counts: Mapping[str, int]
    """What was worked on, as the replica counted it: `Result.counts` of the protocol."""
    version_id: str = ""
    """Which version has answered; nothing: the deployment has none of its own, as an adapter."""
    is_copy: bool = False
    """A mirror has answered, and nobody waited for it."""
    times: Mapping[str, int] = field(default_factory=dict[str, int])
    """Of the replica's phases, microseconds: `Result.times`."""


class RuntimeListener:
    """Is notified of what happens. Called on the event loop; must not block."""

    def changed(self, spec: DeploymentSpec, status: Status, reason: Reason, message: str) -> None:
        """The observed state of what a specification describes has changed."""

    def loaded(self, spec: DeploymentSpec, seconds: float) -> None:
        """A replica became ready, so long after it was asked for."""

    def served(self, call: Served) -> None:
        """A call has ended. Called in the context of its task; of one that was cancelled, as soon
        as the replica has reported what it came to.
        """

    def measured(self, spec: DeploymentSpec) -> None:
        """What one replica needs, `spec.memory_bytes`, was measured."""


class Listeners(RuntimeListener):
    """Notifies all of them."""

    def __init__(self) -> None:
        self._listeners: list[RuntimeListener] = []

    def add(self, *listeners: RuntimeListener) -> None:
        self._listeners += listeners

    def changed(self, spec: DeploymentSpec, status: Status, reason: Reason, message: str) -> None:
        for listener in self._listeners:
            listener.changed(spec, status, reason, message)

    def loaded(self, spec: DeploymentSpec, seconds: float) -> None:
        for listener in self._listeners:
            listener.loaded(spec, seconds)

    def served(self, call: Served) -> None:
        for listener in self._listeners:
            listener.served(call)

    def measured(self, spec: DeploymentSpec) -> None:
        for listener in self._listeners:
            listener.measured(spec)


class Runtime(Protocol):
    """Runs what specifications describe: the versions of deployments. Cancelling the task that
    awaits `call` cancels the work in the engine.

    Everything is called on the one event loop; what is no coroutine must not block it.
    """

    is_remote: bool
    """Whether others, where the replicas are, write down what is observed of them: events, what
    they need, what they hold."""

    async def start(self, listeners: Sequence[RuntimeListener]) -> None:
        """Begin to work; called once, on the event loop that all else is called on.

        Waits for no replica, nor for what `why_not_ready` names.
        """
        ...

    async def stop(self) -> None:
        """Let the work in flight finish within the grace time, then end every replica.

        Waits for their ends.
        """
        ...

    def apply(self, spec: DeploymentSpec, *, running: bool) -> None:
        """Make a deployment known or change it; replicas of an older spec are replaced.

        `running` is what its owner wants; False ends its replicas and refuses calls. Waits for
        nothing: what comes of it is notified to the listeners.
        """
        ...

    def check_fits(self, spec: DeploymentSpec) -> None:
        """Raises `CapacityError` where a `hot` deployment's memory could not be kept for it."""
        ...

    def check_beside(self, spec: DeploymentSpec, live_id: str) -> None:
        """Raises `CapacityError` where this cannot be loaded while another one stays."""
        ...

    async def remove(self, spec_id: str) -> None:
        """End the replicas of a specification and forget it; waits for their ends. A deployment's
        log goes with its last one.

        Nothing, for one that is not known.
        """
        ...

    async def sweep_strays(self) -> None:
        """Drop what is kept of deployments that are not known, as of one that was deleted while
        its server was killed.
        """
        ...

    async def call(
        self,
        spec_id: str,
        call: Call | Generation,
        *,
        wait_s: float,
        timeout_s: float,
        on_progress: OnProgress | None = None,
    ) -> bytes:
        """The answer's bytes: JSON, or what the task makes.

        Waits at most `wait_s` for a replica to be ready, then at most `timeout_s` for the answer.
        `on_progress` is notified of how much is done, 0 to 1, of work that takes many steps.
        Raises `ModelLoadingError`, `RateLimitError`, `InferenceTimeoutError`, `CapacityError`,
        `InferenceError`, `InvalidRequestError`, `ConflictError` where the deployment is stopped,
        and `NotFoundError` where it is not known.
        """
        ...

    def stream(
        self,
        spec_id: str,
        call: Call | Generation,
        *,
        wait_s: float,
        timeout_s: float,
        keep_alive: bytes = KEEP_ALIVE,
    ) -> AsyncGenerator[bytes]:
        """The answer's parts as they come, ready to be sent; closing it cancels the work.

        Waits as `call` does; `timeout_s` is the longest silence. The first part comes once the
        request was found good, before that it raises as `call` does. `keep_alive` is sent now and
        then while there is nothing else to send; nothing, where it is empty.
        """
        ...

    def stats(self, spec_id: str) -> DeploymentStats | None:
        """The observed state, or None for what is not known."""
        ...

    def machine(self) -> MachineStats:
        """What replicas run on, as of now; cheap enough to be asked every second."""
        ...

    def nodes(self) -> Sequence[NodeStats]:
        """The machines that run replicas, in the order of their ids.

        Empty where this server runs them itself: `machine` tells of it.
        """
        ...

    def at_work(self, besides: str) -> bool:
        """Whether calls wait or are worked on, of any specification but this one."""
        ...

    async def log_lines(self, deployment_id: str, limit: int) -> list[str]:
        """The last lines that the deployment's replicas wrote, oldest first, `limit` at most.

        Empty for a deployment that is not known or whose replicas wrote nothing, and where this
        runtime keeps no logs.
        """
        ...

    @property
    def meter(self) -> Meter:
        """What the replicas hold of memory, and for how long; the gateway bills by it."""
        ...

    def why_not_ready(self) -> str | None:
        """What keeps replicas from being started without delay, in words; None: nothing does."""
        ...

    def check(self) -> str | None:
        """What keeps the runtime from making progress, in words; None: all is well."""
        ...
