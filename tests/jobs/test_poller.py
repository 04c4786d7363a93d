"""The poller of all kinds of jobs, and runners that rely on it."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import delete, update

from stoker.platform.jobs import repository
from stoker.platform.jobs import runner as jobs_runner
from stoker.platform.jobs.poller import JobPoller
from stoker.platform.jobs.runner import JobRunner
from stoker.store import db
from stoker.store.db import Database
from stoker.store.tables.accounts import Account
from stoker.store.tables.agents import Run
from stoker.store.tables.imports import Import
from stoker.store.tables.videos import Video
from tests.jobs.test_runner import LEASE_S, Clock, Kind, at_work, ended, forever, taken, until
from tests.support.databases import counted
from tests.support.rows import video


@pytest.fixture
async def database(migrated: Database) -> Database:
    async with migrated.transaction() as session:
        await session.execute(delete(Video))
        if await session.get(Account, "acct_jobs") is None:
            session.add(Account(id="acct_jobs", name="jobs", created_at=db.now()))
    return migrated


async def add(database: Database, **columns: Any) -> str:
    row = video("acct_jobs", "dep_1")
    async with database.transaction() as session:
        session.add(row)
        await session.flush()
        if columns:
            await session.execute(update(Video).where(Video.id == row.id).values(**columns))
    return row.id


LATER, EARLIER = timedelta(seconds=1), -timedelta(seconds=1)


class TestDueTables:
    @pytest.mark.parametrize(
        ("status", "expires", "starts", "is_due"),
        [
            ("queued", None, None, True),
            ("queued", None, EARLIER, True),
            ("queued", None, LATER, False),
            ("in_progress", EARLIER, None, True),
            ("in_progress", LATER, None, False),
            ("completed", None, None, False),
            ("failed", EARLIER, None, False),
        ],
    )
    async def test_names_tables_with_due_jobs(
        self,
        database: Database,
        status: str,
        expires: timedelta | None,
        starts: timedelta | None,
        is_due: bool,
    ) -> None:
        now = db.now()
        await add(
            database,
            status=status,
            lock_token=None if expires is None else "token",
            lock_expires_at=None if expires is None else now + expires,
            not_before=None if starts is None else now + starts,
        )
        with counted(database) as statements:
            due = await repository.due_tables(database, (Run, Video, Import), now=now)
        assert (due, len(statements)) == (["videos"] if is_due else [], 1)
        async with database.reading() as session:
            accounts = await repository.due_accounts(session, Video, now=now, busy=(), held=())
        assert bool(accounts) is is_due, "the poll and the claim differ"


class SharedDatabase:
    """A database that counts as PostgreSQL: other servers may use it."""

    is_sqlite = False

    def __init__(self, database: Database) -> None:
        self.transaction, self.poll = database.transaction, database.poll


def polled(database: Database, clock: Clock) -> tuple[JobRunner[Video, str], JobPoller]:
    shared: Any = SharedDatabase(database)
    job_runner = JobRunner[Video, str](
        shared, lease_s=LEASE_S, at_once=8, share=lambda _: 8, clock=clock
    )
    return job_runner, JobPoller(shared, {Video: job_runner}, clock)


class TestPolledRunner:
    async def test_claims_a_job_of_another_server(
        self, database: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(jobs_runner, "POLL_S", 0.01)
        (job_runner, poller), kind = polled(database, Clock()), Kind()
        async with at_work(job_runner, kind):
            await asyncio.sleep(0.1)
            job = await add(database)
            await asyncio.sleep(0.1)
            assert kind.begun == [], "the runner polled by itself"
            await poller.look()
            await until(database, job, ended)

    async def test_polls_by_itself_while_it_works(
        self, database: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(jobs_runner, "POLL_S", 0.01)
        clock = Clock()
        (job_runner, _), kind = polled(database, clock), Kind()
        kind.work = forever
        async with at_work(job_runner, kind):
            await asyncio.sleep(0.1)
            first = await taken(database, job_runner, "a kite")
            second = await add(database)
            await until(database, second, lambda row: row.status == "in_progress")
            clock.pass_by(2 * LEASE_S)
            for job in (first, second):
                row = await until(
                    database, job, lambda row: (row.lock_expires_at or row.created_at) > clock.now
                )
                assert row.tries == 1
