"""A deployment as it is: what its owner wants of it, what replicas it has, what is told of it."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from stoker.runtime.interface import DeploymentSpec, Reason, RuntimeListener, Status
from stoker.runtime.pool.backoff import Backoff
from stoker.runtime.pool.handle import Replica

log = logging.getLogger(__name__)


@dataclass(eq=False)
class Start:
    """A replica on its way: it waits for memory, then it loads."""

    reason: Reason
    is_claiming: bool = False
    """Whether it waits for memory."""
    task: "asyncio.Task[None]" = field(init=False)


class News:
    """Wakes those who wait for something about the replicas to change."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def announce(self) -> None:
        event, self._event = self._event, asyncio.Event()
        event.set()

    async def wait(self, timeout_s: float) -> None:
        # Not `asyncio.wait_for`: before Python 3.12 it loses a cancellation that comes together
        # with what it waits for.
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._event.wait()


@dataclass(eq=False)
class State:
    """What those share who start, use and end a deployment's replicas."""

    spec: DeploymentSpec
    running: bool
    listener: RuntimeListener
    clock: Callable[[], float]
    generation: int = 0
    """Of the specification: replicas of an older one are replaced."""
    replicas: dict[str, Replica] = field(default_factory=dict[str, Replica])
    starts: set[Start] = field(default_factory=set[Start])
    news: News = field(default_factory=News)
    reason: Reason = Reason.CREATED
    message: str = "Waiting for its first request."
    _told: Status = Status.IDLE

    def __post_init__(self) -> None:
        self.backoff = Backoff(self.clock)

    def ready(self) -> list[Replica]:
        """Replicas that take work: of the newest specification where there are any."""
        ready = self.of_status(Status.READY)
        newest = max((one.generation for one in ready), default=0)
        return [one for one in ready if one.generation == newest]

    def of_status(self, status: Status) -> list[Replica]:
        return [one for one in self.replicas.values() if one.status is status]

    def alive(self) -> int:
        """Replicas of this specification that are ready, or on their way."""
        ready = self.of_status(Status.READY)
        return sum(one.generation == self.generation for one in ready) + len(self.starts)

    @property
    def is_steady(self) -> bool:
        """Whether those who answer now are those who will."""
        return bool(self.ready()) and not self.starts

    @property
    def kept(self) -> int:
        """How many its owner wants loaded."""
        return max(1 if self.spec.readiness.stays_loaded else 0, self.spec.min_replicas)

    @property
    def most(self) -> int:
        return max(1, self.spec.max_replicas, self.spec.min_replicas)

    @property
    def status(self) -> Status:
        states = {one.status for one in self.replicas.values()}
        if not self.running:
            return Status.STOPPING if states else Status.STOPPED
        if Status.READY in states:
            return Status.READY
        if self.starts:
            return Status.STARTING
        if self.backoff.problem:
            return Status.FAILED
        return Status.STOPPING if Status.STOPPING in states else Status.IDLE

    def note(self, reason: Reason, message: str) -> None:
        """Something has happened that changes no status, and is worth an event."""
        log.info("deployment event", extra={"deployment": self.spec.id, "reason": reason})
        self.listener.changed(self.spec.id, self.status, reason, message)

    def observe(self, reason: Reason, message: str) -> None:
        """Something has happened: tell of it, where it has changed the status."""
        status = self.status
        if status is not self._told or status is Status.FAILED:
            self._told, self.reason, self.message = status, reason, message
            log.info(
                "deployment changed",
                extra={"deployment": self.spec.id, "status": status, "reason": reason},
            )
            self.listener.changed(self.spec.id, status, reason, message)

    def settled(self) -> None:
        """A replica has ended as it was told to; why the deployment failed stays said."""
        problem = self.backoff.problem if self.status is Status.FAILED else None
        if problem is None or self._told is not Status.FAILED:
            self.observe(self.reason, str(problem or ("" if self.running else "Stopped.")))
