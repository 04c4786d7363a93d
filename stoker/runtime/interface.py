"""Interface between Stoker and its runtimes: the one place that changes with scale. Code above it
does not know whether replicas are processes or Ray actors.
"""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

from stoker.runtime.listening import RuntimeListener
from stoker.runtime.metering import Meter
from stoker.runtime.observed import DeploymentStats, MachineStats, NodeStats, Reason
from stoker.runtime.specification import DeploymentSpec
from stoker.wire.generation_request import AdapterName, Generation


class LoadError(Exception):
    """Raised if the model could not be loaded. The message is for its owner."""

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
            reason: set if the reason is neither a failed load nor a lack of memory.
            lasting: waiting does not help.
            has_fallback: the execution it was loaded with is quarantined, and the next start does
                not use it.
        """
        super().__init__(message)
        self.out_of_memory = out_of_memory
        self.lasting = lasting
        self.has_fallback = has_fallback
        self.reason = reason


class ModelLocator(Protocol):
    """Locates the models of deployments."""

    async def folder(self, spec: DeploymentSpec, *, is_ahead: bool = False) -> Path:
        """Returns a folder in Hugging Face format on the machine that runs this call. The folder
        stays as long as a replica of the specification runs.

        Args:
            is_ahead: no caller waits for the model yet, so no other model may be evicted for it.

        Raises `LoadError` if the model is missing.
        """
        ...

    async def content(self, spec: DeploymentSpec) -> str:
        """Returns a digest that models with the same files share. Empty if it is not known."""
        ...

    async def adapters(self, spec: DeploymentSpec) -> Path:
        """Returns the folder of the adapters that calls of a deployment may name. Each adapter has
        its own subfolder. Adapters are added and removed while the folder is in use.
        """
        ...


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """Request to a deployment. Its items are batched with those of other requests.

    `task` must be served by the deployment's pipeline.
    """

    task: str
    items: Sequence[Any]
    parameters: Mapping[str, Any]
    single: bool
    """True if the answer is the result of the one item. False if it is a list of results."""
    finishing: Mapping[str, Any] = {}
    """Arguments that the task needs to make one answer of all results."""
    stream: bool = False
    """True with `Runtime.stream`: the answer of the one item is streamed in parts as it is made."""
    adapter: AdapterName | None = None
    """Adapter that is applied to the model for this call."""


OnProgress = Callable[[float], None]
"""Called on the event loop; must not block."""
KEEP_ALIVE = b": keep-alive\n\n"
"""A comment in a stream of server-sent events: proxies close idle connections."""


class Runtime(Protocol):
    """Runs specifications: the versions of deployments. Cancelling the task that awaits `call`
    cancels the work in the engine.

    All methods are called on one event loop. Methods that are not coroutines must not block it.
    """

    is_remote: bool
    """True if other processes, next to the replicas, store the observations of them: events, memory
    needs and held memory.
    """

    async def start(self, listeners: Sequence[RuntimeListener]) -> None:
        """Starts the runtime. Called once, on the event loop that makes all other calls.

        Does not wait for replicas or for the obstacles that `why_not_ready` reports.
        """
        ...

    async def stop(self) -> None:
        """Lets calls in flight finish within the grace time, then ends every replica.

        Waits until the replicas have ended.
        """
        ...

    def apply(self, spec: DeploymentSpec, *, running: bool) -> None:
        """Registers or changes a deployment. Replicas of an older spec are replaced.

        `running` is the state that the owner wants. False ends its replicas and rejects calls. Does
        not wait: the listeners are notified of the outcome.
        """
        ...

    def check_fits(self, spec: DeploymentSpec) -> None:
        """Raises `CapacityError` if the memory of a `hot` deployment could not be kept for it."""
        ...

    def check_beside(self, spec: DeploymentSpec, live_id: str) -> None:
        """Raises `CapacityError` if the specification cannot be loaded while the live one stays
        loaded.
        """
        ...

    async def remove(self, spec_id: str) -> None:
        """Ends the replicas of a specification and forgets it. Waits until the replicas have ended.
        A deployment's log is deleted with its last specification.

        Does nothing for an unknown specification.
        """
        ...

    async def sweep_strays(self) -> None:
        """Deletes stored data of unknown deployments, such as a deployment that was deleted while
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
        """Returns the answer's bytes: JSON, or the format of the task.

        Waits at most `wait_s` for a ready replica, then at most `timeout_s` for the answer.
        `on_progress` is notified of the completed fraction, 0 to 1, of work with many steps.

        Raises `ModelLoadingError`, `RateLimitError`, `InferenceTimeoutError`, `CapacityError`,
        `InferenceError`, `InvalidRequestError`, `ConflictError` if the deployment is stopped, and
        `NotFoundError` if it is unknown.
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
        """Yields the parts of the answer as they arrive, ready to send. Closing the generator
        cancels the work.

        Waits as `call` does. `timeout_s` is the longest silence. The first part is sent after the
        request was validated. Until then, errors are raised as by `call`. `keep_alive` is sent from
        time to time while no other part is available. If it is empty, it is not sent.
        """
        ...

    def stats(self, spec_id: str) -> DeploymentStats | None:
        """Returns the observed state, or None for an unknown specification."""
        ...

    def machine(self) -> MachineStats:
        """Returns the current state of the machine that runs the replicas. Cheap enough to call
        every second.
        """
        ...

    def nodes(self) -> Sequence[NodeStats]:
        """Returns the machines that run replicas, ordered by id.

        Empty if this server runs the replicas itself. `machine` reports on it then.
        """
        ...

    def at_work(self, besides: str) -> bool:
        """Returns True if calls of any other specification are queued or in progress."""
        ...

    async def log_lines(self, deployment_id: str, limit: int) -> list[str]:
        """Returns the last lines that the deployment's replicas wrote, oldest first, at most
        `limit`.

        Empty if the deployment is unknown, its replicas wrote nothing, or this runtime keeps no
        logs.
        """
        ...

    @property
    def meter(self) -> Meter:
        """Measures how much memory the replicas hold, and for how long. The gateway bills by it."""
        ...

    def why_not_ready(self) -> str | None:
        """Returns the reason that replicas cannot start without delay, in words. None means no
        obstacle.
        """
        ...

    def check(self) -> str | None:
        """Returns the reason that the runtime makes no progress, in words. None means that it
        works.
        """
        ...
