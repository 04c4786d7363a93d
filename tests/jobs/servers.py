"""Simulated servers that share jobs. They die, stall, and lose their database."""

import asyncio
import contextlib
import heapq
import itertools
from collections.abc import AsyncIterator, Callable
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import text

from stoker.base.errors import StokerError
from stoker.platform.jobs.kind import Outcome
from stoker.platform.jobs.runner import JobRunner
from stoker.store import db
from stoker.store.db import Database, Session
from stoker.store.tables.videos import Video

AT_ONCE = 4
SHARE = 2
LEASE_S = 60.0
ENDS = "CREATE TABLE IF NOT EXISTS machine_ends (job VARCHAR(40), what VARCHAR(8))"
"""Creates the table that records committed calls of `keep` and `ended`."""


class Time:
    """A manual clock that also wakes its sleepers."""

    def __init__(self) -> None:
        self.passed = 0.0
        self.offset = timedelta()
        self._begun = db.now()
        self._numbers = itertools.count()
        self._sleeping: list[tuple[float, int, asyncio.Future[None]]] = []

    def __call__(self) -> datetime:
        return self._begun + timedelta(seconds=self.passed) + self.offset

    async def sleep(self, seconds: float) -> None:
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleeping, (self.passed + seconds, next(self._numbers), woken))
        await woken

    def until_next(self, most: float) -> float:
        """Returns the seconds until the next sleeper wakes, at most `most`."""
        return min(most, self._sleeping[0][0] - self.passed) if self._sleeping else most

    def pass_by(self, seconds: float) -> None:
        self.passed += seconds
        while self._sleeping and self._sleeping[0][0] <= self.passed:
            woken = heapq.heappop(self._sleeping)[2]
            if not woken.done():
                woken.set_result(None)


class GoneError(Exception):
    """The database cannot be reached."""


class Door:
    """A server's access to the database, with faults."""

    is_sqlite = False
    """Two servers share the database, whichever it is."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.open = 0
        """Number of open transactions."""
        self.is_dead = self.is_gone = False
        self.steps_left: int | None = None
        """Number of steps until the server is killed. None means it is not killed."""
        self._going = asyncio.Event()
        self._going.set()

    def stall(self) -> None:
        self._going.clear()

    def resume(self) -> None:
        self._going.set()

    @property
    def is_stalled(self) -> bool:
        return not self._going.is_set()

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[Session]:
        await self._going.wait()
        self.open += 1
        try:
            self._step()
            async with self._database.transaction() as session:
                self._step()
                yield session
                await session.flush()
                self._step()
            self._step()
        finally:
            self.open -= 1

    def _step(self) -> None:
        if self.steps_left is not None:
            self.steps_left -= 1
            self.is_dead = self.is_dead or self.steps_left <= 0
        if self.is_dead or self.is_gone:
            raise GoneError


class Server:
    """A runner with work that waits until the test decides how it ends."""

    table = Video

    def __init__(self, database: Database, time: Time) -> None:
        self.door = Door(database)
        door: Any = self.door
        self.runner: JobRunner[Video, str] = JobRunner(
            door,
            lease_s=LEASE_S,
            at_once=AT_ONCE,
            share=lambda _: SHARE,
            clock=time,
            sleep=time.sleep,
        )
        self.at_work: dict[str, asyncio.Future[str]] = {}
        self.begun: list[str] = []
        self.task = asyncio.create_task(self.runner.run(self))

    @property
    def is_alive(self) -> bool:
        return not self.door.is_dead

    @property
    def tokens(self) -> dict[str, str]:
        """Lock tokens of the jobs that the server works on."""
        return {name: work.token for name, work in self.runner._working.items()}

    async def end(self) -> None:
        """Hands all jobs back, or none if the server was killed."""
        self.door.resume()
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)

    # --- methods of the job kind ---

    async def perform(self, row: Video, on_progress: Callable[[float], None]) -> str:
        self.begun.append(row.id)
        self.at_work[row.id] = ending = asyncio.get_running_loop().create_future()
        try:
            return await ending
        finally:
            if self.at_work.get(row.id) is ending:
                del self.at_work[row.id]

    def outcome(self, row: Video, made: str) -> Outcome:
        return Outcome({"size": made}, "requires_action" if made == "a question" else None)

    async def keep(self, session: Session, row: Video, made: str) -> None:
        await _note(session, row, "kept")

    async def ended(self, session: Session, row: Video, error: StokerError | None) -> None:
        await _note(session, row, "ended")

    async def discard(self, made: str) -> None:
        pass


async def _note(session: Session, row: Video, what: str) -> None:
    statement = text("INSERT INTO machine_ends VALUES (:job, :what)")
    await session.execute(statement, {"job": row.id, "what": what})


async def settle(servers: list[Server]) -> None:
    """Waits until all servers wait for the test."""
    quiet = 0
    while quiet < 20:
        busy = any(server.door.open for server in servers)
        quiet = 0 if busy else quiet + 1
        await asyncio.sleep(0.0003 if busy else 0)
