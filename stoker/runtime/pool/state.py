"""State of a deployment: its specification, replicas, starts and observed status."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from stoker.runtime.listening import RuntimeListener
from stoker.runtime.observed import Reason, Status
from stoker.runtime.pool.backoff import Backoff
from stoker.runtime.pool.handle import ReplicaHandle
from stoker.runtime.specification import DeploymentSpec

log = logging.getLogger(__name__)


@dataclass(eq=False)
class Start:
    """A starting replica: it waits for memory, then it loads."""

    reason: Reason
    is_background: bool = False
    """True if only background calls need it. It uses free memory only."""
    is_claiming: bool = False
    """True if it waits for memory."""
    _task: "asyncio.Task[None] | None" = None

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        self._task = asyncio.create_task(work)

    @contextmanager
    def claiming(self) -> Generator[None]:
        """Marks the start as waiting for memory."""
        self.is_claiming = True
        try:
            yield
        finally:
            self.is_claiming = False

    def cancel(self) -> None:
        if self._task:
            self._task.cancel()


class ChangeSignal:
    """Condition that wakes every waiter when the replicas have changed."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def notify_all(self) -> None:
        event, self._event = self._event, asyncio.Event()
        event.set()

    async def wait(self, timeout_s: float) -> None:
        """Waits until the next notification or the timeout."""
        # Not `asyncio.wait_for`: before Python 3.12 it loses a cancellation that arrives together
        # with the awaited event.
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._event.wait()


@dataclass(eq=False)
class State:
    """State shared by the components that start, use and drain a deployment's replicas."""

    spec: DeploymentSpec
    running: bool
    listener: RuntimeListener
    clock: Callable[[], float]
    generation: int = 0
    """Generation of the specification. Replicas of an older one are replaced."""
    replicas: dict[str, ReplicaHandle] = field(default_factory=dict[str, ReplicaHandle])
    starts: set[Start] = field(default_factory=set[Start])
    changes: ChangeSignal = field(default_factory=ChangeSignal)
    reason: Reason = Reason.CREATED
    message: str = "Waiting for its first request."
    _notified: Status = Status.IDLE
    """The last status that the listeners were notified of."""

    def __post_init__(self) -> None:
        self.backoff = Backoff(self.clock)

    def update(self, spec: DeploymentSpec, *, running: bool) -> None:
        """Sets the wanted state."""
        self.spec, self.running = spec, running

    def begin_generation(self) -> None:
        """Makes the current replicas outdated."""
        self.generation += 1

    def set_memory(self, memory_bytes: int) -> None:
        """Sets the measured memory need of one replica."""
        self.spec = replace(self.spec, memory_bytes=memory_bytes, weight_bytes=0)

    def stop(self) -> None:
        """Records that the deployment is no longer wanted to run."""
        self.running = False

    def ready(self) -> list[ReplicaHandle]:
        """Returns the replicas that accept calls: the ready ones of the newest generation."""
        ready = self.of_status(Status.READY)
        if len(ready) < 2:
            return ready
        newest = max((replica.generation for replica in ready), default=0)
        return [replica for replica in ready if replica.generation == newest]

    def of_status(self, status: Status) -> list[ReplicaHandle]:
        return [replica for replica in self.replicas.values() if replica.status is status]

    def alive(self) -> int:
        """Returns the number of ready and starting replicas of this specification."""
        ready = self.of_status(Status.READY)
        return sum(replica.generation == self.generation for replica in ready) + len(self.starts)

    @property
    def is_steady(self) -> bool:
        """True if the current replicas will keep answering: none is starting."""
        return bool(self.ready()) and not self.starts

    @property
    def min_loaded(self) -> int:
        """Minimum number of loaded replicas that the owner wants."""
        return max(1 if self.spec.readiness.stays_loaded else 0, self.spec.min_replicas)

    @property
    def max_alive(self) -> int:
        """Maximum number of replicas under load."""
        return max(1, self.spec.max_replicas, self.spec.min_replicas)

    @property
    def status(self) -> Status:
        states = {replica.status for replica in self.replicas.values()}
        if not self.running:
            return Status.STOPPING if states else Status.STOPPED
        if Status.READY in states:
            return Status.READY
        if self.starts:
            return Status.STARTING
        if self.backoff.problem:
            return Status.FAILED
        return Status.STOPPING if Status.STOPPING in states else Status.IDLE

    def add_event(self, reason: Reason, message: str) -> None:
        """Notifies the listener of an event that does not change the status."""
        log.info("deployment event", extra={"deployment": self.spec.deployment, "reason": reason})
        self.listener.changed(self.spec, self.status, reason, message)

    def notify(self, reason: Reason, message: str) -> None:
        """Notifies the listener if the status has changed, and of every failure."""
        status = self.status
        if status is not self._notified or status is Status.FAILED:
            self._notified, self.reason, self.message = status, reason, message
            log.info(
                "deployment changed",
                extra={"deployment": self.spec.deployment, "status": status, "reason": reason},
            )
            self.listener.changed(self.spec, status, reason, message)

    def replica_stopped(self) -> None:
        """Handles the end of a draining replica. The reason of a failed deployment stays as it
        is.
        """
        problem = self.backoff.problem if self.status is Status.FAILED else None
        if problem is None or self._notified is not Status.FAILED:
            self.notify(self.reason, str(problem or ("" if self.running else "Stopped.")))
