"""Jobs under any faults of two servers that share them: kills between any two steps, stalls, an
unreachable database, clocks that jump. Each job ends, and ends once.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule
from sqlalchemy import delete, select, text

from stoker.base.errors import CapacityError, InferenceError
from stoker.base.fairness import GREED
from stoker.platform.jobs import runner as running
from stoker.platform.jobs.runner import MOST_LOSSES
from stoker.store import db
from stoker.store.tables.accounts import Account
from stoker.store.tables.jobs import UNFINISHED
from stoker.store.tables.videos import Video
from tests.jobs.servers import AT_ONCE, ENDS, LEASE_S, SHARE, GoneError, Server, Time, settle
from tests.support.databases import postgres_url
from tests.support.machines import Bench, Machine, bench, try_out
from tests.support.rows import video

__all__ = ["bench", "postgres_url"]

MOST_TRIES = 3
ACCOUNTS = ("acct_one", "acct_other")
ENDED = ("completed", "failed", "cancelled")
DAY_S = 24 * 3600
numbers, picks = st.integers(0, 1), st.integers(0, 9)
endings = st.sampled_from(("made", "made", "failure", "passing", "question"))


@dataclass
class ExpectedJob:
    """Expected state of an acknowledged job."""

    account: str
    deployment: str
    is_deleted: bool = False
    begun: int = 0
    may_begin: int = MOST_TRIES
    parks: int = 0
    row: Video | None = None
    """Last seen row."""
    stopped: set[str | None] = field(default_factory=set)
    """Tokens of servers that handed the job back."""


class Jobs(Machine):
    def __init__(self, bench: Bench) -> None:
        super().__init__(bench)
        self.bench = bench
        self.time = Time()
        self.jobs: dict[str, ExpectedJob] = {}
        self.seen: datetime = self.time()
        """Time of the clock when the rows were last read."""
        self.run(self._open())

    async def _open(self) -> None:
        async with self.bench.database.transaction() as session:
            await session.execute(text(ENDS))
            await session.execute(text("DELETE FROM machine_ends"))
            await session.execute(delete(Video))
            for name in ACCOUNTS:
                if await session.get(Account, name) is None:
                    session.add(Account(id=name, name=name, quotas={}, created_at=db.now()))
        self.servers = [Server(database, self.time) for database in self.bench.servers]
        await settle(self.servers)

    def _settle(self) -> None:
        self.run(settle(self.servers))
        for number, server in enumerate(self.servers):
            for name in server.begun:
                self.jobs[name].begun += 1
            server.begun.clear()
            if not server.is_alive:
                # Later writes of a killed server have no effect.
                self.run(server.end())
                self.servers[number] = self.run(self._started(number))

    async def _started(self, number: int) -> Server:
        server = Server(self.bench.servers[number], self.time)
        await settle([*self.servers, server])
        self._count(server)
        return server

    def _count(self, server: Server) -> None:
        for name in server.begun:
            self.jobs[name].begun += 1
        server.begun.clear()

    # --- clients ---

    @rule(account=st.sampled_from(ACCOUNTS), deployment=st.integers(0, 2))
    def add(self, account: str, deployment: int) -> None:
        self._add(account, deployment, None)

    @rule(account=st.sampled_from(ACCOUNTS), deployment=st.integers(0, 2), server=numbers)
    def add_and_take(self, account: str, deployment: int, server: int) -> None:
        self._add(account, deployment, self.servers[server])

    def _add(self, account: str, deployment: int, server: Server | None) -> None:
        name = f"video_{len(self.jobs):026}"
        row = video(account, f"{account}_{deployment}", id=name)

        async def work() -> bool:
            door: Any = server.door if server else self.bench.database
            try:
                async with door.transaction() as session:
                    if server:
                        server.runner.take(session, row)
                    session.add(row)
            except GoneError:
                # The job was not acknowledged, but it may exist.
                async with self.bench.database.reading() as session:
                    return await session.get(Video, name) is not None
            return True

        if server and server.door.is_stalled:
            return
        if self.run(work()):
            self.jobs[name] = ExpectedJob(account, row.deployment_id)
        self._settle()

    def _there(self, pick: int, *status: str) -> str | None:
        names = [
            name
            for name, job in self.jobs.items()
            if job.row is not None and not job.is_deleted and job.row.status in status
        ]
        return names[pick % len(names)] if names else None

    @rule(pick=picks, server=numbers)
    def delete(self, pick: int, server: int) -> None:
        name = self._there(pick, *UNFINISHED, "requires_action", *ENDED)
        if name is None:
            return

        async def work() -> None:
            async with self.bench.database.transaction() as session:
                await session.delete(await session.get_one(Video, name, with_for_update=True))
            self.servers[server].runner.cancel(name)

        self.jobs[name].is_deleted = True
        self.run(work())
        self._settle()

    @rule(pick=picks, server=numbers)
    def cancel(self, pick: int, server: int) -> None:
        name = self._there(pick, *UNFINISHED, "requires_action")
        if name is None:
            return

        async def work() -> None:
            async with self.bench.database.transaction() as session:
                row = await session.get_one(Video, name, with_for_update=True)
                row.status, row.completed_at = "cancelled", db.now()
                row.lock_token = row.lock_expires_at = None
            self.servers[server].runner.cancel(name)

        self.run(work())
        self._settle()

    @rule(pick=picks)
    def answer(self, pick: int) -> None:
        """Queues a parked job again, as if its answer had arrived."""
        name = self._there(pick, "requires_action")
        if name is None:
            return

        async def work() -> None:
            async with self.bench.database.transaction() as session:
                (await session.get_one(Video, name, with_for_update=True)).status = "queued"

        self.jobs[name].begun, self.jobs[name].may_begin = 0, MOST_TRIES
        self.run(work())
        self._settle()

    # --- work ---

    @rule(server=numbers)
    def look(self, server: int) -> None:
        """Makes a server poll for jobs. Checks that it claims each account's oldest job, by
        turns.
        """
        polling_server = self.servers[server]
        before = set(polling_server.tokens)
        polling_server.runner.wake()
        self._settle()
        polling_server = self.servers[server]
        if polling_server.door.is_stalled or polling_server.door.is_gone:
            return
        rows = self.run(self._rows())
        working = [self.jobs[name] for name in polling_server.tokens]
        at_work = Counter(job.account for job in working)
        by_deployment = Counter(job.deployment for job in working)
        waiting = [
            name
            for name, row in rows.items()
            if row.status in UNFINISHED
            and row.lock_token is None
            and (row.not_before is None or row.not_before <= self.time())
            and by_deployment[row.deployment_id] < SHARE
        ]
        free = AT_ONCE - len(working)
        for name in waiting:
            job = self.jobs[name]
            assert at_work[job.account] >= GREED * free, "it could have begun"
            for got in set(polling_server.tokens) - before:
                assert at_work[self.jobs[got].account] <= at_work[job.account] + 1
                assert self.jobs[got].deployment != job.deployment or got < name

    @rule(pick=picks, server=numbers, ending=endings)
    def end(self, pick: int, server: int, ending: str) -> None:
        """Ends work, in time or late."""
        working_server = self.servers[server]
        names = sorted(working_server.at_work)
        if not names:
            return
        name = names[pick % len(names)]
        row = self.run(self._rows()).get(name)
        is_holder = row is not None and row.lock_token == working_server.tokens.get(name)
        ending_future = working_server.at_work[name]
        if ending == "failure":
            ending_future.set_exception(InferenceError("The model failed on this input."))
        elif ending == "passing":
            ending_future.set_exception(CapacityError("The worker was lost.", code="worker_lost"))
        else:
            ending_future.set_result("a question" if ending == "question" else "64x64")
        unharmed = not (
            working_server.door.is_stalled
            or working_server.door.is_gone
            or working_server.door.steps_left
        )
        if is_holder and ending == "question":
            self.jobs[name].parks += 1
        self._settle()
        row = self.run(self._rows()).get(name)
        if is_holder and ending == "question" and row and row.status != "requires_action":
            assert not unharmed
            self.jobs[name].parks -= 1
        if is_holder and unharmed and row:
            expected = {"made": "completed", "failure": "failed", "question": "requires_action"}
            assert row.status == expected.get(ending, row.status)

    # --- faults ---

    @rule(server=numbers, steps=st.integers(0, 8))
    def kill(self, server: int, steps: int) -> None:
        """Kills a server now, or between any two later steps."""
        self.servers[server].door.steps_left = steps
        if not steps:
            self.servers[server].door.is_dead = True
            self.servers[server].door.resume()
        self._settle()

    @rule(server=numbers)
    def kill_and_find(self, server: int) -> None:
        """Kills a server and polls for its jobs after their leases expire. A job that kills its
        servers ends too.
        """
        self.kill(server, 0)
        self.pass_by(LEASE_S)
        self.look(server)

    @rule(server=numbers)
    def restart(self, server: int) -> None:
        """A regularly stopped server leaves no job that others have to wait for."""
        stopped_server = self.servers[server]
        tokens = stopped_server.tokens
        is_well = not (stopped_server.door.is_gone or stopped_server.door.steps_left)
        for name, token in tokens.items():
            self.jobs[name].may_begin += 1
            self.jobs[name].stopped.add(token)
        self.run(stopped_server.end())
        self._count(stopped_server)
        if is_well:
            held_tokens = {row.lock_token for row in self.run(self._rows()).values()}
            assert not held_tokens & set(tokens.values())
        self.servers[server] = self.run(self._started(server))

    @rule(server=numbers)
    def stall(self, server: int) -> None:
        self.servers[server].door.stall()

    @rule(server=numbers)
    def resume(self, server: int) -> None:
        self.servers[server].door.resume()
        self._settle()

    @rule(server=numbers, gone=st.booleans())
    def lose_database(self, server: int, gone: bool) -> None:
        self.servers[server].door.is_gone = gone

    @rule(seconds=st.sampled_from((1.0, 5.0, LEASE_S / 4, LEASE_S, 3 * LEASE_S)))
    def pass_by(self, seconds: float) -> None:
        while seconds > 0:
            step = self.time.until_next(seconds)
            self.time.pass_by(step)
            seconds -= step
            self._settle()

    @rule(seconds=st.integers(-DAY_S, DAY_S))
    def jump(self, seconds: int) -> None:
        self.time.offset += timedelta(seconds=seconds)

    # --- invariants after each step ---

    async def _rows(self) -> dict[str, Video]:
        async with self.bench.database.reading() as session:
            rows = await session.scalars(select(Video).order_by(Video.id))
            return {row.id: row for row in rows}

    @invariant()
    def jobs_are_sound(self) -> None:
        rows = self.run(self._rows())
        ends = self.run(self._ends())
        assert set(rows) == {name for name, tracked in self.jobs.items() if not tracked.is_deleted}
        for name, job in self.jobs.items():
            assert ends[name, "ended"] <= 1
            if row := rows.get(name):
                self._check(job, row, ends)
                job.row = row
        self.seen = self.time()
        for server in self.servers:
            working = [self.jobs[name] for name in server.tokens]
            assert len(working) <= AT_ONCE
            for count in Counter(tracked.deployment for tracked in working).values():
                assert count <= SHARE
        holders = Counter(
            name
            for server in self.servers
            for name, token in server.tokens.items()
            if name in rows and rows[name].lock_token == token
        )
        assert not holders or max(holders.values()) == 1

    def _check(self, job: ExpectedJob, row: Video, ends: Counter[tuple[str, str]]) -> None:
        assert (row.status == "in_progress") == (row.lock_token is not None)
        assert (row.lock_token is None) == (row.lock_expires_at is None)
        assert row.tries <= MOST_TRIES + 1
        assert row.losses < MOST_LOSSES
        assert job.begun <= job.may_begin, "it was begun more often than it may be"
        assert ends[row.id, "ended"] == (row.status in ("completed", "failed"))
        assert ends[row.id, "kept"] == job.parks + (row.status == "completed")
        before = job.row
        if before is None:
            return
        if before.status in ENDED:
            same = ("status", "completed_at", "error_code", "size", "tries", "lock_token")
            assert [getattr(row, column) for column in same] == [
                getattr(before, column) for column in same
            ]
        elif before.lock_expires_at and row.lock_token not in (None, before.lock_token):
            ran_out = before.lock_expires_at <= max(self.seen, self.time())
            assert ran_out or before.lock_token in job.stopped, "taken from one that held it"

    async def _ends(self) -> Counter[tuple[str, str]]:
        async with self.bench.database.reading() as session:
            rows: Sequence[Any] = (await session.execute(text("SELECT * FROM machine_ends"))).all()
        return Counter((row[0], row[1]) for row in rows)

    def teardown(self) -> None:
        """Every job ends once all faults are over."""
        try:
            self.jump(DAY_S)
            for server in self.servers:
                server.door.resume()
                server.door.is_gone, server.door.steps_left = False, None
            for _ in range(60):
                self._settle()
                self.jobs_are_sound()
                if all(job.is_deleted or job.row.status in ENDED for job in self.jobs.values()):  # type: ignore[union-attr]
                    break
                for number in range(2):
                    self.answer(0)
                    self.look(number)
                    self.end(0, number, "made")
                self.pass_by(LEASE_S)
            else:
                raise AssertionError("some jobs never end")
        finally:
            for server in self.servers:
                self.run(server.end())


@pytest.mark.fault("b3", "c5", "f1", "f2")
def test_each_ends_once(bench: Bench) -> None:
    with (
        patch.object(running, "MOST_TRIES", MOST_TRIES),
        # Periodic polls happen only when the test triggers them.
        patch.object(running, "POLL_S", 1e9),
    ):
        try_out(Jobs, bench, most=6)
