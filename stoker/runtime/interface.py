"""The one seam for scale. Nothing above it knows whether replicas are processes or Ray actors."""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from stoker.runtime.listening import RuntimeListener
from stoker.runtime.metering import Meter
from stoker.runtime.observed import DeploymentStats, MachineStats, NodeStats, Reason
from stoker.runtime.specification import DeploymentSpec
from stoker.wire.generation_request import AdapterName, Generation


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


OnProgress = Callable[[float], None]
"""Called on the event loop; must not block."""
KEEP_ALIVE = b": keep-alive\n\n"
"""A comment in a stream of server-sent events: proxies close idle connections."""


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
