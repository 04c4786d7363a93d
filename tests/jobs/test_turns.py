"""Places are shared by account: unit tests, and tests on real databases."""

import asyncio
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import delete

from stoker.base.fairness import GREED, FairShare
from stoker.platform.jobs.kind import YieldedError
from stoker.platform.jobs.runner import JobRunner
from stoker.store import db
from stoker.store.db import Database
from stoker.store.tables.accounts import Account
from stoker.store.tables.videos import Video
from tests.jobs.test_runner import LEASE_S, Clock, Kind, at_work, ended, until
from tests.jobs.test_runner import add as add_one

A, B, C = "acct_a", "acct_b", "acct_c"


class TestAllot:
    def test_alone_it_gets_all_but_what_one_more_account_needs(self):
        assert FairShare(8).allot({}, [A]) == {A: 7}
        assert FairShare(256).allot({}, [A]) == {A: 224}

    @pytest.mark.case(30)
    @pytest.mark.parametrize("places", range(2, 8))
    def test_of_few_places_one_is_left(self, places: int):
        assert FairShare(places).allot({}, [A]) == {A: places - 1}
        assert FairShare(places).allot({A: places - 1}, [A, B]) == {B: 1}

    def test_a_single_place_is_taken(self):
        assert FairShare(1).allot({}, [A]) == {A: 1}

    def test_one_that_comes_later_begins_at_once(self):
        assert FairShare(8).allot({A: 7}, [A, B]) == {B: 1}

    def test_the_one_with_fewer_at_work_is_next(self):
        assert FairShare(8).allot({A: 4, B: 1}, [A, B]) == {B: 3}

    def test_of_one_place_they_take_turns(self):
        turns = FairShare(1)
        got = [turns.allot({}, [A, B, C]) for _ in range(6)]
        assert Counter(name for turn in got[:3] for name in turn) == {A: 1, B: 1, C: 1}
        assert got[:3] == got[3:]

    def test_those_who_want_nothing_get_nothing(self):
        assert FairShare(8).allot({A: 3}, []) == {}

    @given(
        places=st.integers(1, 300),
        at_work=st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 40)),
        waiting=st.sets(st.sampled_from("abcdefgh")),
    )
    def test_never_more_than_there_are_and_none_is_left_that_may_be_taken(
        self, places: int, at_work: dict[str, int], waiting: set[str]
    ):
        turns = FairShare(places)
        allotted = turns.allot(at_work, waiting)
        counts = Counter(at_work) + Counter(allotted)
        free = places - counts.total()
        assert free >= 0 or not allotted
        assert set(allotted) <= waiting
        for name in waiting:
            assert counts[name] >= min(GREED * free, max(1, places - 1))
        for got in allotted:
            # No account received a place that put it more than one place ahead of a waiting
            # account.
            assert all(counts[got] <= counts[other] + 1 for other in waiting)


@pytest.fixture
async def database(migrated: Database) -> Database:
    async with migrated.transaction() as session:
        await session.execute(delete(Video))
        for name in ("acct_jobs", A, B, C):
            if await session.get(Account, name) is None:
                session.add(Account(id=name, name=name, quotas={}, created_at=db.now()))
    return migrated


async def row_of(database: Database, job: str) -> Video:
    async with database.reading() as session:
        return await session.get_one(Video, job)


async def add(database: Database, account: str, deployment: str) -> str:
    job = await add_one(database, deployment=deployment)
    async with database.transaction() as session:
        (await session.get_one(Video, job)).account_id = account
    return job


def runner(database: Database, clock: Clock, at_once: int = 8) -> JobRunner:
    return JobRunner(
        database, lease_s=LEASE_S, at_once=at_once, share=lambda _: at_once, clock=clock
    )


class TestM2:
    async def test_one_job_does_not_wait_for_forty_of_another_account(
        self, database: Database
    ) -> None:
        kind, going = Kind(), asyncio.Event()

        async def wait(_row: Video) -> str:
            await going.wait()
            return "made"

        kind.work = wait
        flood = [await add(database, A, "dep_a") for _ in range(40)]
        job_runner = runner(database, Clock())
        async with at_work(job_runner, kind):
            await until(database, flood[6], lambda row: row.status == "in_progress")
            job = await add(database, B, "dep_b")
            # A row is in progress a moment before its work begins.
            await until(database, job, lambda _: job in kind.begun, job_runner)
            assert set(kind.begun) == {*flood[:7], job}, "all of them are still at work"
            going.set()
            await until(database, flood[-1], ended, job_runner)
        assert Counter(kind.begun) == Counter([*flood, job])

    async def test_of_one_place_they_take_turns(self, database: Database) -> None:
        kind = Kind()
        flood = [await add(database, A, "dep_a") for _ in range(10)]
        other_jobs = [await add(database, B, "dep_b") for _ in range(3)]
        async with at_work(runner(database, Clock(), at_once=1), kind):
            await until(database, flood[-1], ended)
        accounts = ["B" if job in other_jobs else "A" for job in kind.begun]
        assert "".join(accounts[:6]) in ("ABABAB", "BABABA")
        assert accounts[6:] == ["A"] * 7

    @pytest.mark.case(30)
    @pytest.mark.parametrize(("places", "begun"), [(1, "AB"), (4, "AAABC")])
    async def test_a_turn_ends_where_another_account_waits(
        self, database: Database, places: int, begun: str
    ) -> None:
        """Turns end jobs that would never end. The account with the most places gives one back."""
        kind, clock = Kind(), Clock()

        async def wait(_row: Video) -> str:
            await asyncio.Event().wait()
            return "made"

        kind.work = wait
        jobs = [await add(database, A, f"dep_{at}") for at in range(6)]
        one = JobRunner(
            database, lease_s=LEASE_S, at_once=places, share=lambda _: 1, turn_s=60, clock=clock
        )
        async with at_work(one, kind):
            most = max(1, places - 1)
            await until(database, jobs[most - 1], lambda _: len(kind.begun) == most, one)
            other_jobs = [
                await add(database, f"acct_{name}", f"dep_{name}")
                for name in begun.strip("A").lower()
            ]
            one.wake()
            await asyncio.sleep(0.1)
            assert len(kind.cancelled) == 0, "no turn is over"
            clock.pass_by(61)
            for job in other_jobs:
                await until(database, job, lambda _, job=job: job in kind.begun, one)
        accounts = ["BC"[other_jobs.index(one)] if one in other_jobs else "A" for one in kind.begun]
        assert "".join(accounts[: len(begun)]) == begun
        row = await row_of(database, kind.cancelled[0])
        # The job continues later, without an additional loss.
        assert (row.tries, row.losses) in ((0, 0), (1, 0))

    @pytest.mark.case(30)
    async def test_one_that_yields_is_handed_back(self, database: Database) -> None:
        kind = Kind()
        job_runner = runner(database, Clock(), at_once=1)

        async def work(row: Video) -> str:
            while row.account_id == A and kind.begun.count(row.id) < 2:
                await asyncio.sleep(0.01)
                if job_runner.should_yield(row):
                    raise YieldedError
            return "made"

        kind.work = work
        long = await add(database, A, "dep_a")
        async with at_work(job_runner, kind):
            await until(database, long, lambda _: long in kind.begun, job_runner)
            short = await add(database, B, "dep_b")
            job_runner.wake()
            await until(database, short, ended, job_runner)
            await until(database, long, lambda _: kind.begun.count(long) == 2, job_runner)

    async def test_one_that_is_taken_at_once_leaves_a_place(self, database: Database) -> None:
        kind, going = Kind(), asyncio.Event()

        async def wait(_row: Video) -> str:
            await going.wait()
            return "made"

        kind.work = wait
        job_runner = runner(database, Clock())
        async with at_work(job_runner, kind):
            await asyncio.sleep(0.05)
            jobs = []
            for account in (*[A] * 9, B):
                jobs.append(await add(database, account, f"dep_{account}"))
                async with database.transaction() as session:
                    job_runner.take(session, await session.get_one(Video, jobs[-1]))
            await until(database, jobs[-1], lambda _: jobs[-1] in kind.begun, job_runner)
            assert len(kind.begun) == 8
            going.set()
            for job in jobs:
                await until(database, job, ended, job_runner)
