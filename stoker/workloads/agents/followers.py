"""Those who follow runs: they hear of events in this process, once these are durable."""

import asyncio
import contextlib
from collections import deque
from collections.abc import Generator, Sequence

from stoker.workloads.agents.events import Event

_KEPT = 256
"""Events that wait for one connection."""


class Follower:
    """What one connection has not taken yet. Where it is slow, the oldest is dropped: it sees the
    gap in the sequence then, and reads what it missed from the database.
    """

    def __init__(self) -> None:
        self.is_deleted = False
        self.is_over = False
        """The server stops."""
        self.is_behind = False
        """There are events of which nobody here has told it."""
        self.heard = 0
        """The last event's number that it was told of, or has read."""
        self._events: deque[Event] = deque(maxlen=_KEPT)
        self._news = asyncio.Event()

    def hear(self, events: Sequence[Event]) -> None:
        self._events.extend(events)
        self.heard = max(self.heard, events[-1].sequence) if events else self.heard
        self._news.set()

    def hear_of_more(self, last: int) -> None:
        """The database has events up to this number."""
        if last > self.heard:
            self.is_behind = True
            self._news.set()

    def hear_of_deletion(self) -> None:
        self.is_deleted = True
        self._events.clear()
        self._news.set()

    def hear_of_the_end(self) -> None:
        self.is_over = True
        self._news.set()

    def take(self) -> list[Event]:
        found = list(self._events)
        self._events.clear()
        self._news.clear()
        return found

    async def wait(self, seconds: float) -> bool:
        """Until there is news; False where there was none for so long."""
        try:
            async with asyncio.timeout(seconds):
                await self._news.wait()
        except TimeoutError:
            return False
        return True


class Followers:
    def __init__(self) -> None:
        self._of_run: dict[str, set[Follower]] = {}
        self._is_over = False

    @contextlib.contextmanager
    def follow(self, run_id: str) -> Generator[Follower]:
        follower = Follower()
        follower.is_over = self._is_over
        self._of_run.setdefault(run_id, set()).add(follower)
        try:
            yield follower
        finally:
            others = self._of_run[run_id]
            others.discard(follower)
            if not others:
                del self._of_run[run_id]

    def followed(self) -> list[str]:
        """The runs that somebody follows."""
        return [*self._of_run]

    def reached(self, run_id: str, last: int) -> None:
        """A run's events go up to this number, whoever has written them."""
        for follower in self._of_run.get(run_id, ()):
            follower.hear_of_more(last)

    def publish(self, run_id: str, events: Sequence[Event]) -> None:
        """Tell of events that are durable."""
        for follower in self._of_run.get(run_id, ()):
            follower.hear(events)

    def end(self) -> None:
        """The server stops: whoever follows a run comes back to another, or to the next start."""
        self._is_over = True
        for followers in self._of_run.values():
            for follower in followers:
                follower.hear_of_the_end()

    def deleted(self, run_id: str) -> None:
        for follower in self._of_run.get(run_id, ()):
            follower.hear_of_deletion()
