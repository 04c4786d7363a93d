"""Followers of runs. They receive events in this process once the events are durable."""

import asyncio
import contextlib
from collections import deque
from collections.abc import Generator, Sequence

from stoker.workloads.agents.events import JournalEvent

_KEPT = 256
"""Maximum number of events that wait for one connection."""


class Follower:
    """Buffer of the events that one connection has not consumed yet.

    If the connection is slow, the oldest event is dropped. The follower then sees the gap in the
    sequence and reads the missing events from the database.
    """

    def __init__(self) -> None:
        self.is_deleted = False
        self.is_over = False
        """True once the server stops."""
        self.is_behind = False
        """True if the database has events that were not published in this process."""
        self.heard = 0
        """Sequence number of the last event that the follower received or read."""
        self._events: deque[JournalEvent] = deque(maxlen=_KEPT)
        self._news = asyncio.Event()

    def hear(self, events: Sequence[JournalEvent]) -> None:
        self._events.extend(events)
        self.heard = max(self.heard, events[-1].sequence) if events else self.heard
        self._news.set()

    def hear_of_more(self, last: int) -> None:
        """Notes that the database has events up to this number."""
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

    def take(self) -> list[JournalEvent]:
        events = list(self._events)
        self._events.clear()
        self._news.clear()
        return events

    async def wait(self, seconds: float) -> bool:
        """Waits for news. Returns False if none arrives within the timeout."""
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
            followers = self._of_run[run_id]
            followers.discard(follower)
            if not followers:
                del self._of_run[run_id]

    def followed(self) -> list[str]:
        """Returns the ids of the runs that have followers."""
        return [*self._of_run]

    def reached(self, run_id: str, last: int) -> None:
        """Notifies followers that a run's events go up to this number, regardless of which server
        wrote them.
        """
        for follower in self._of_run.get(run_id, ()):
            follower.hear_of_more(last)

    def publish(self, run_id: str, events: Sequence[JournalEvent]) -> None:
        """Sends durable events to the run's followers."""
        for follower in self._of_run.get(run_id, ()):
            follower.hear(events)

    def end(self) -> None:
        """Ends all followers because the server stops. Their clients reconnect to another server,
        or after the restart.
        """
        self._is_over = True
        for followers in self._of_run.values():
            for follower in followers:
                follower.hear_of_the_end()

    def deleted(self, run_id: str) -> None:
        for follower in self._of_run.get(run_id, ()):
            follower.hear_of_deletion()
