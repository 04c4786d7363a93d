"""Jobs on real databases. Each ends once, even if runners die, hang or are late."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import delete, select

from stoker.base.errors import CapacityError, InferenceError, ModelLoadingError, StokerError
from stoker.platform.jobs import runner as jobs_runner
from stoker.platform.jobs.kind import Outcome
from stoker.platform.jobs.runner import MOST_LOSSES, MOST_TRIES, RETRY_FIRST_S, JobRunner
from stoker.store import db
from stoker.store.db import Database, Session
from stoker.store.tables.accounts import Account
from stoker.store.tables.videos import Video
from tests.support.rows import video

LEASE_S = 1000.0


class Clock:
    def __init__(self) -> None:
        self.now = db.now()

    def __call__(self) -> datetime:
        return self.now

    def pass_by(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


class Kind:
    """A kind of job with work that the test defines. Records all events of its jobs."""

    table = Video

    def __init__(self) -> None:
        self.work: Callable[[Video], Awaitable[str]] = self._at_once
        self.begun: list[str] = []
        self.kept: list[str] = []
        self.cleared: list[str] = []
        self.discarded: list[str] = []
        self.cancelled: list[str] = []
        self.on_made: Callable[[Video], object] = lambda _row: None

    @staticmethod
    async def _at_once(row: Video) -> str:
        return f"made of {row.prompt}"

    async def perform(self, row: Video, on_progress: Callable[[float], None]) -> str:
        self.begun.append(row.id)
        on_progress(0.5)
        try:
            return await self.work(row)
        except asyncio.CancelledError:
            self.cancelled.append(row.id)
            raise

    def outcome(self, row: Video, made: str) -> Outcome:
        self.on_made(row)
        waits_as = "requires_action" if made == "a question" else None
        return Outcome({"size": "64x64"}, waits_as)

    async def keep(self, session: Session, row: Video, made: str) -> None:
        self.kept.append(made)

    async def ended(self, session: Session, row: Video, error: StokerError | None) -> None:
        self.cleared.append(row.id)

    async def discard(self, made: str) -> None:
        self.discarded.append(made)


@pytest.fixture
async def database(migrated: Database) -> Database:
    async with migrated.transaction() as session:
        await session.execute(delete(Video))
        if await session.get(Account, "acct_jobs") is None:
            session.add(Account(id="acct_jobs", name="jobs", created_at=db.now()))
    return migrated


async def add(database: Database, prompt: str = "a boat", deployment: str = "dep_1") -> str:
    row = video("acct_jobs", deployment, prompt=prompt)
    async with database.transaction() as session:
        session.add(row)
    return row.id


async def row_of(database: Database, job_id: str) -> Video:
    async with database.reading() as session:
        return await session.get_one(Video, job_id)


def runner(
    database: Database, clock: Clock, *, lease_s: float = LEASE_S, share: int = 8
) -> JobRunner:
    return JobRunner(database, lease_s=lease_s, at_once=8, share=lambda _: share, clock=clock)


@contextlib.asynccontextmanager
async def at_work(one: JobRunner, kind: Kind) -> AsyncIterator[None]:
    task = asyncio.create_task(one.run(kind))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(
    database: Database, job_id: str, holds: Callable[[Video], bool], woken: JobRunner | None = None
) -> Video:
    async with asyncio.timeout(30):
        while not holds(row := await row_of(database, job_id)):
            if woken:
                woken.wake()
            await asyncio.sleep(0.01)
    return row


def ended(row: Video) -> bool:
    return row.status in ("completed", "failed")


async def forever(_row: Video) -> str:
    await asyncio.Event().wait()
    return ""


async def taken(database: Database, one: JobRunner, prompt: str) -> str:
    """Adds a job and assigns it to a runner in the same transaction. Returns its id."""
    job = await add(database, prompt)
    async with database.transaction() as session:
        one.take(session, await session.get_one(Video, job))
        assert one.progress(job) is None
    return job


class TestTaken:
    async def test_begins_with_the_commit(self, database: Database) -> None:
        kind, job_runner = Kind(), runner(database, Clock())
        async with at_work(job_runner, kind):
            await asyncio.sleep(0.05)
            job = await taken(database, job_runner, "a kite")
            row = await until(database, job, ended)
        assert (row.status, row.tries, row.size) == ("completed", 1, "64x64")
        assert kind.begun == [job]

    async def test_waits_where_there_is_no_room(self, database: Database) -> None:
        kind, job_runner = Kind(), runner(database, Clock(), share=1)
        going = asyncio.Event()

        async def wait(_row: Video) -> str:
            await going.wait()
            return "made"

        kind.work = wait
        async with at_work(job_runner, kind):
            await asyncio.sleep(0.05)
            first = await taken(database, job_runner, "a kite")
            second = await taken(database, job_runner, "a boat")
            await until(database, first, lambda row: row.status == "in_progress")
            assert (await row_of(database, second)).lock_token is None
            going.set()
            for job in (first, second):
                await until(database, job, ended)
        assert kind.begun == [first, second]

    async def test_waits_where_nobody_works(self, database: Database) -> None:
        kind, job_runner = Kind(), runner(database, Clock())
        job = await taken(database, job_runner, "a kite")
        assert (await row_of(database, job)).status == "queued"
        async with at_work(job_runner, kind):
            await until(database, job, ended)


class TestPolls:
    async def test_no_rounds_without_due_jobs(
        self, database: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(jobs_runner, "POLL_S", 0.01)
        rounds = 0

        class Counting(JobRunner[Video, str]):
            async def _claim_all(self, kind: Any) -> None:
                nonlocal rounds
                rounds += 1
                await super()._claim_all(kind)

        job_runner = Counting(database, lease_s=LEASE_S, at_once=8, share=lambda _: 8)
        job_runner.is_polled = True
        async with at_work(job_runner, Kind()):
            await asyncio.sleep(0.2)
            assert rounds == 1
            job = await add(database)
            job_runner.wake()
            await until(database, job, ended)

    async def test_a_wake_during_a_round_lasts(
        self, database: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(jobs_runner, "POLL_S", 60.0)
        added: list[str] = []

        class Slow(JobRunner[Video, str]):
            async def _claim_all(self, kind: Any) -> None:
                await super()._claim_all(kind)
                if not added:
                    added.append(await add(database))
                    self.wake()

        job_runner = Slow(database, lease_s=LEASE_S, at_once=8, share=lambda _: 8)
        async with at_work(job_runner, Kind()):
            await until(database, (await anything(added)), ended)


async def anything(items: list[str]) -> str:
    """Returns the first item as soon as there is one."""
    async with asyncio.timeout(30):
        while not items:
            await asyncio.sleep(0.01)
    return items[0]


class TestEnds:
    async def test_completed_with_what_was_made(self, database: Database) -> None:
        clock, kind = Clock(), Kind()
        job = await add(database)
        async with at_work(runner(database, clock), kind):
            row = await until(database, job, ended)
        assert (row.status, row.progress, row.size, row.tries) == ("completed", 1.0, "64x64", 1)
        assert row.completed_at == clock.now
        assert row.lock_token is row.lock_expires_at is row.error_code is None
        assert (kind.kept, kind.cleared, kind.discarded) == (["made of a boat"], [job], [])

    async def test_failure_is_told_and_not_repeated(self, database: Database) -> None:
        kind = Kind()

        async def fail(_row: Video) -> str:
            raise InferenceError("The model failed on this input.")

        kind.work = fail
        job = await add(database)
        async with at_work(runner(database, Clock()), kind):
            row = await until(database, job, ended)
        assert (row.status, row.error_code) == ("failed", "inference_failed")
        assert row.error_message == "The model failed on this input."
        assert kind.begun == kind.cleared == [job]

    async def test_unexpected_failure_tells_nothing_of_the_inside(self, database: Database) -> None:
        kind = Kind()

        async def fail(_row: Video) -> str:
            raise RuntimeError("/secret/path")

        kind.work = fail
        job = await add(database)
        async with at_work(runner(database, Clock()), kind):
            row = await until(database, job, ended)
        assert (row.status, row.error_code) == ("failed", "internal_error")
        assert "secret" not in (row.error_message or "")

    async def test_progress_is_there_while_it_works(self, database: Database) -> None:
        kind, going = Kind(), asyncio.Event()

        async def wait(_row: Video) -> str:
            await going.wait()
            return "made"

        kind.work = wait
        job_runner = runner(database, Clock(), lease_s=0.2)
        job = await add(database)
        async with at_work(job_runner, kind):
            # Stored with the lease, for other servers.
            await until(database, job, lambda row: row.progress == 0.5)
            assert job_runner.progress(job) == 0.5
            going.set()
            await until(database, job, ended)
        assert job_runner.progress(job) is None


class TestTriedAgain:
    async def test_after_a_pause_that_grows(self, database: Database) -> None:
        clock, kind = Clock(), Kind()

        async def lose(_row: Video) -> str:
            raise CapacityError("The worker was lost.", code="worker_lost")

        kind.work = lose
        job_runner = runner(database, clock)
        job = await add(database)
        async with at_work(job_runner, kind):
            for tried in range(1, MOST_LOSSES):
                row = await until(
                    database, job, lambda row, n=tried: row.status == "queued" and row.losses == n
                )
                assert row.not_before == clock.now + timedelta(
                    seconds=RETRY_FIRST_S * 2 ** (tried - 1)
                )
                job_runner.wake()
                await asyncio.sleep(0.05)
                assert len(kind.begun) == tried, "it was taken up before its time"
                clock.pass_by(RETRY_FIRST_S * 2 ** (tried - 1))
                job_runner.wake()
            row = await until(database, job, ended)
        assert (row.status, row.error_code, row.tries) == ("failed", "worker_lost", MOST_LOSSES)
        assert kind.cleared == [job]

    async def test_not_before_the_model_is_loaded_again(self, database: Database) -> None:
        """The job waits until the model is loaded again. Otherwise all five tries would be used up
        by one failed load.
        """
        clock, kind = Clock(), Kind()

        async def fail(_row: Video) -> str:
            raise ModelLoadingError("It is tried again in 40 s.", retry_after_s=40)

        kind.work = fail
        job_runner = runner(database, clock)
        job = await add(database)
        async with at_work(job_runner, kind):
            row = await until(database, job, lambda row: row.status == "queued" and row.losses == 1)
        assert row.not_before == clock.now + timedelta(seconds=40)

    async def test_that_takes_its_server_down_every_time(self, database: Database) -> None:
        clock, kind = Clock(), Kind()
        job = await add(database)
        async with database.transaction() as session:
            row = await session.get_one(Video, job)
            row.status, row.tries, row.lock_token = "in_progress", MOST_TRIES, "of the dead"
            row.lock_expires_at = clock.now
        async with at_work(runner(database, clock), kind):
            row = await until(database, job, ended)
        assert (row.status, row.error_code) == ("failed", "worker_lost")
        assert kind.begun == []


class TestParks:
    """A parked job belongs to no runner until it is queued again."""

    async def test_without_lock_and_without_end(self, database: Database) -> None:
        clock, kind = Clock(), Kind()
        answers = iter(["a question", "an answer"])

        async def ask(_row: Video) -> str:
            return next(answers)

        kind.work = ask
        job_runner = runner(database, clock)
        job = await add(database)
        async with database.transaction() as session:
            row = await session.get_one(Video, job)
            row.tries, row.losses = 7, 2
        async with at_work(job_runner, kind):
            row = await until(database, job, lambda row: row.status == "requires_action")
            assert (row.lock_token, row.lock_expires_at, row.completed_at) == (None, None, None)
            assert (row.tries, row.losses, row.size) == (0, 0, "64x64")
            assert (kind.kept, kind.cleared, kind.discarded) == (["a question"], [], [])
            # No runner claims it, however late.
            clock.pass_by(100 * LEASE_S)
            job_runner.wake()
            await asyncio.sleep(0.1)
            assert kind.begun == [job]
            async with database.transaction() as session:
                (await session.get_one(Video, job)).status = "queued"
            row = await until(database, job, ended, job_runner)
        assert (row.status, row.tries) == ("completed", 1)
        assert (kind.kept, kind.cleared) == (["a question", "an answer"], [job])
        assert kind.begun == [job, job]

    async def test_not_where_it_was_taken_over(self, database: Database) -> None:
        kind, going = Kind(), asyncio.Event()

        async def ask(_row: Video) -> str:
            await going.wait()
            return "a question"

        kind.work = ask
        job = await add(database)
        async with at_work(runner(database, Clock()), kind):
            await until(database, job, lambda row: row.status == "in_progress")
            async with database.transaction() as session:
                (await session.get_one(Video, job)).lock_token = "of another"
            going.set()
            async with asyncio.timeout(10):
                while not kind.discarded:
                    await asyncio.sleep(0.01)
        row = await row_of(database, job)
        assert (row.status, row.lock_token) == ("in_progress", "of another")
        assert (kind.kept, kind.discarded) == ([], ["a question"])


class TestCancelledWhenMade:
    """The work is done, but its result is not stored yet."""

    async def test_of_a_deleted_job_is_dropped(self, database: Database) -> None:
        kind, job_runner = Kind(), runner(database, Clock())

        async def delete_it(row: Video) -> str:
            async with database.transaction() as session:
                await session.execute(delete(Video).where(Video.id == row.id))
            return "too late"

        kind.work, kind.on_made = delete_it, lambda row: job_runner.cancel(row.id)
        await add(database)
        async with at_work(job_runner, kind), asyncio.timeout(10):
            while not kind.discarded:
                await asyncio.sleep(0.01)
        assert (kind.kept, kind.discarded, kind.cancelled) == ([], ["too late"], [])

    async def test_of_a_job_that_is_there_is_kept(self, database: Database) -> None:
        kind, job_runner = Kind(), runner(database, Clock())
        kind.on_made = lambda row: job_runner.cancel(row.id)
        job = await add(database)
        async with at_work(job_runner, kind):
            row = await until(database, job, ended)
        assert (row.status, row.tries) == ("completed", 1)
        assert (kind.begun, kind.kept, kind.discarded) == ([job], ["made of a boat"], [])


class TestLease:
    async def test_late_result_changes_nothing(self, database: Database) -> None:
        clock, slow, quick = Clock(), Kind(), Kind()
        going = asyncio.Event()

        async def wait(_row: Video) -> str:
            await going.wait()
            return "too late"

        slow.work = wait
        job = await add(database)
        first, second = runner(database, clock), runner(database, clock)
        async with at_work(first, slow):
            await until(database, job, lambda row: row.status == "in_progress")
            async with at_work(second, quick):
                second.wake()
                await asyncio.sleep(0.05)
                assert quick.begun == [], "it was taken from one that holds it"
                clock.pass_by(LEASE_S)
                row = await until(database, job, ended, second)
                going.set()
                async with asyncio.timeout(10):
                    while not slow.discarded:
                        await asyncio.sleep(0.01)
        again = await row_of(database, job)
        assert (again.status, again.completed_at, again.tries) == ("completed", row.completed_at, 2)
        assert (slow.kept, slow.cleared, slow.discarded) == ([], [], ["too late"])
        assert quick.kept == ["made of a boat"]

    async def test_is_renewed_while_it_works(self, database: Database) -> None:
        clock, kind, going = Clock(), Kind(), asyncio.Event()

        async def wait(_row: Video) -> str:
            await going.wait()
            return "made"

        kind.work = wait
        job = await add(database)
        async with at_work(runner(database, clock, lease_s=0.2), kind):
            first = (await until(database, job, lambda row: row.lock_token is not None)).lock_token
            clock.pass_by(100)
            row = await until(
                database, job, lambda row: (row.lock_expires_at or row.created_at) > clock.now
            )
            assert row.lock_token == first
            going.set()
            await until(database, job, ended)
        assert kind.begun == [job]

    async def test_lost_one_ends_the_work(self, database: Database) -> None:
        clock, kind = Clock(), Kind()

        async def forever(_row: Video) -> str:
            await asyncio.Event().wait()
            return ""

        kind.work = forever
        job = await add(database)
        async with at_work(runner(database, clock, lease_s=0.2), kind):
            await until(database, job, lambda row: row.status == "in_progress")
            async with database.transaction() as session:
                await session.execute(delete(Video).where(Video.id == job))
            async with asyncio.timeout(10):
                while kind.cancelled != [job]:
                    await asyncio.sleep(0.01)

    async def test_shutdown_is_not_lost_where_there_is_news(self, database: Database) -> None:
        for _ in range(20):
            job_runner = runner(database, Clock())
            task = asyncio.create_task(job_runner.run(Kind()))
            await asyncio.sleep(0.02)
            job_runner.wake()
            task.cancel()
            async with asyncio.timeout(30):
                await asyncio.gather(task, return_exceptions=True)
            assert task.cancelled()

    async def test_is_given_back_at_shutdown(self, database: Database) -> None:
        clock, kind = Clock(), Kind()
        kind.work = forever
        job = await add(database)
        async with at_work(runner(database, clock), kind):
            await until(database, job, lambda row: row.status == "in_progress")
        row = await row_of(database, job)
        assert (row.status, row.tries, row.lock_token, row.not_before) == ("queued", 0, None, None)

    async def test_is_given_back_where_it_was_leased_just_now(self, database: Database) -> None:
        """A job is handed back if the server ends between the commit of its lease and the start of
        its work.
        """
        kind, late = Kind(), LateDatabase(database)
        kind.work = forever
        job = await add(database)
        late_database: Any = late
        async with at_work(runner(late_database, Clock()), kind):
            await late.committed.wait()
        row = await row_of(database, job)
        assert (row.status, row.tries, row.lock_token, row.not_before) == ("queued", 0, None, None)


class LateDatabase:
    """A database that returns late from a commit."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.is_sqlite = database.is_sqlite
        self.committed = asyncio.Event()

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[Session]:
        async with self._database.transaction() as session:
            yield session
        self.committed.set()
        await asyncio.sleep(0.05)


class TestSharing:
    async def test_each_job_is_worked_on_once(self, database: Database) -> None:
        kind, other = Kind(), Kind()
        jobs = [await add(database, str(number)) for number in range(20)]
        async with (
            at_work(runner(database, Clock()), kind),
            at_work(runner(database, Clock()), other),
        ):
            for job in jobs:
                await until(database, job, ended)
        assert Counter(kind.begun + other.begun) == Counter(jobs)
        async with database.reading() as session:
            assert set(await session.scalars(select(Video.status))) == {"completed"}

    async def test_one_deployment_does_not_hold_up_another(self, database: Database) -> None:
        kind, going = Kind(), asyncio.Event()

        async def wait_first(row: Video) -> str:
            if row.deployment_id == "dep_1":
                await going.wait()
            return "made"

        kind.work = wait_first
        # Ids of the same millisecond have no defined order.
        slow = sorted([await add(database) for _ in range(10)])
        job = await add(database, deployment="dep_2")
        async with at_work(runner(database, Clock(), share=1), kind):
            await until(database, job, ended)
            assert kind.begun == [slow[0], job]
            going.set()
            for slow_job in slow:
                await until(database, slow_job, ended)
        assert kind.begun == [slow[0], job, *slow[1:]]
