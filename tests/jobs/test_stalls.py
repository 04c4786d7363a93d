"""A runner that is stalled for longer than a lease."""

import asyncio
from datetime import timedelta

from stoker.store.db import Database
from stoker.store.tables.videos import Video
from tests.jobs.test_runner import (
    LEASE_S,
    Clock,
    Kind,
    add,
    at_work,
    database,
    ended,
    forever,
    row_of,
    runner,
    until,
)

__all__ = ["database"]


async def test_h2b_stalled_runner_does_not_take_over_its_own(database: Database) -> None:
    """A runner that renewed nothing for longer than a lease polls for jobs first, and keeps its own
    job.
    """
    clock, kind, going = Clock(), Kind(), asyncio.Event()

    async def wait(_row: Video) -> str:
        await going.wait()
        return "made"

    kind.work = wait
    job_runner = runner(database, clock)
    job = await add(database)
    async with at_work(job_runner, kind):
        leased = await until(database, job, lambda row: row.lock_token is not None)
        clock.pass_by(2 * LEASE_S)
        other = await add(database, "a kite")
        job_runner.wake()
        await until(database, other, lambda row: row.status == "in_progress")
        row = await row_of(database, job)
        assert (row.lock_token, row.tries) == (leased.lock_token, 1)
        # Renewed before other jobs are leased, so no other server considers it lost.
        assert row.lock_expires_at == clock.now + timedelta(seconds=LEASE_S)
        going.set()
        for name in (job, other):
            await until(database, name, ended)
    assert kind.begun == [job, other]
    assert (kind.cancelled, kind.discarded) == ([], [])


async def test_h2b_job_that_another_has_taken_over_stays_with_it(database: Database) -> None:
    """Another server claims the job if the stall lasts longer than its lease."""
    clock, slow, quick = Clock(), Kind(), Kind()
    slow.work = quick.work = forever
    job = await add(database)
    first, second = runner(database, clock), runner(database, clock)
    async with at_work(first, slow):
        await until(database, job, lambda row: row.status == "in_progress")
        clock.pass_by(2 * LEASE_S)
        async with at_work(second, quick):
            claimed = await until(database, job, lambda row: row.tries == 2)
            other = await add(database, "a kite")
            await until(database, other, lambda row: row.status == "in_progress", first)
            row = await row_of(database, job)
    assert (row.lock_token, row.tries) == (claimed.lock_token, 2)
    assert quick.begun[0] == job
    assert slow.begun.count(job) == 1
