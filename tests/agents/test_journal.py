"""The journal on real databases. No event is lost, repeated or written without permission."""

import asyncio
import contextlib
import sqlite3
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.exc import DBAPIError, OperationalError

from stoker.base.errors import InternalError
from stoker.platform.sealing import Sealer
from stoker.store import db, waiting
from stoker.store.secret import ServerSecret
from stoker.store.tables.agents import Run, RunEvent
from stoker.workloads.agents import journal as module
from stoker.workloads.agents import repository, run_service, stream
from stoker.workloads.agents.events import (
    MESSAGE_DELTA,
    REASONING_DELTA,
    STEP_STARTED,
    JournalEvent,
)
from stoker.workloads.agents.followers import Followers
from stoker.workloads.agents.journal import LostError, append, sealed
from tests.agents.lab import Lab, counted_commits
from tests.agents.support import parsed


def told(events: Sequence[JournalEvent]) -> list[tuple[int, str, Any]]:
    return [(event.sequence, event.type, event.data) for event in events]


class TestWriting:
    async def test_in_order_and_durable(self, lab: Lab) -> None:
        row = await lab.run()
        writer = lab.writer(row)
        for number in range(1, 21):
            writer.add(STEP_STARTED, {"step": number})
        writer.set({"steps": 20})
        await writer.commit()
        expected = [(number, STEP_STARTED, {"step": number}) for number in range(1, 21)]
        assert told(await lab.events(row)) == expected
        stored = await lab.row(row.id)
        assert stored and stored.steps == 20

    async def test_pieces_become_one(self, lab: Lab) -> None:
        row = await lab.run()
        writer = lab.writer(row)
        for text in ("It", " is", " 21"):
            writer.add_delta(MESSAGE_DELTA, 1, text)
        writer.add_delta(REASONING_DELTA, 1, "hm")
        writer.add_delta(MESSAGE_DELTA, 1, " degrees")
        await writer.commit()
        writer.add_delta(MESSAGE_DELTA, 1, ".")
        await writer.commit()
        assert told(await lab.events(row)) == [
            (1, MESSAGE_DELTA, {"step": 1, "text": "It is 21"}),
            (2, REASONING_DELTA, {"step": 1, "text": "hm"}),
            (3, MESSAGE_DELTA, {"step": 1, "text": " degrees"}),
            (4, MESSAGE_DELTA, {"step": 1, "text": "."}),
        ]

    async def test_pieces_are_written_without_being_asked_to(self, lab: Lab) -> None:
        row = await lab.run()
        with lab.followers.follow(row.id) as follower:
            lab.writer(row).add_delta(MESSAGE_DELTA, 1, "It")
            assert await follower.wait(10)
            assert told(follower.take()) == told(await lab.events(row))

    async def test_many_runs_share_a_commit(self, lab: Lab) -> None:
        rows = [await lab.run() for _ in range(50)]
        writers = [lab.writer(row) for row in rows]
        for number, writer in enumerate(writers):
            writer.add(STEP_STARTED, {"step": number})
        with counted_commits(lab.database) as commits:
            for writer in writers:
                writer.set({"steps": 7})
            await asyncio.gather(*(writer.commit() for writer in writers))
        assert len(commits) <= 3, "a commit each would be fifty"
        for number, row in enumerate(rows):
            assert told(await lab.events(row)) == [(1, STEP_STARTED, {"step": number})]

    async def test_follower_hears_only_what_is_durable(self, lab: Lab) -> None:
        row = await lab.run()
        writer = lab.writer(row)
        with lab.followers.follow(row.id) as follower:
            writer.add(STEP_STARTED, {"step": 1})
            assert follower.take() == []
            await writer.commit()
            assert told(follower.take()) == [(1, STEP_STARTED, {"step": 1})]

    async def test_what_is_taken_is_written_by_who_took_it(self, lab: Lab) -> None:
        row = await lab.run()
        writer = lab.writer(row)
        writer.add(STEP_STARTED, {"step": 1})
        await writer.commit()
        writer.add(STEP_STARTED, {"step": 2})
        writer.add_delta(MESSAGE_DELTA, 2, "It")
        pending = await writer.take()
        assert told(pending) == [
            (2, STEP_STARTED, {"step": 2}),
            (3, MESSAGE_DELTA, {"step": 2, "text": "It"}),
        ]
        await asyncio.sleep(3 * module.GATHER_S)
        assert len(await lab.events(row)) == 1, "the journal has let go of them"
        with lab.followers.follow(row.id) as follower:
            async with lab.database.transaction() as session:
                last = [("run.completed", {})]
                await append(session, lab.followers, row, lab.sealer(row), last, written=pending)
            assert told(follower.take()) == [*told(pending), (4, "run.completed", {})]
        assert [event.sequence for event in await lab.events(row)] == [1, 2, 3, 4]

    async def test_what_is_being_written_is_not_taken(self, lab: Lab) -> None:
        row = await lab.run()
        writer = lab.writer(row)
        writer.add(STEP_STARTED, {"step": 1})
        commit = asyncio.create_task(writer.commit())
        while writer not in lab.journal._writing:
            await asyncio.sleep(0)
        writer.add(STEP_STARTED, {"step": 2})
        assert told(await writer.take()) == [(2, STEP_STARTED, {"step": 2})]
        assert commit.done() or await commit is None
        assert told(await lab.events(row)) == [(1, STEP_STARTED, {"step": 1})]

    async def test_failing_transaction_is_retried(
        self, lab: Lab, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        row = await lab.run()
        writer, fails = lab.writer(row), 3
        monkeypatch.setattr(waiting, "RETRY_S", 0.01)
        add_events = repository.add_events

        async def failing(*given: Any) -> None:
            nonlocal fails
            await add_events(*given)
            if fails:
                fails -= 1
                # The transaction with the events is rolled back.
                raise OSError("the disk is full")

        monkeypatch.setattr(repository, "add_events", failing)
        with lab.followers.follow(row.id) as follower:
            writer.add(STEP_STARTED, {"step": 1})
            writer.set({"steps": 1})
            commit = asyncio.create_task(writer.commit())
            while fails:
                # The model sends more text meanwhile.
                writer.add_delta(MESSAGE_DELTA, 1, "a")
                await asyncio.sleep(0.005)
            await commit
            writer.add(STEP_STARTED, {"step": 2})
            writer.set({"steps": 2})
            await writer.commit()
            events = await lab.events(row)
            assert told(follower.take()) == told(events)
        assert [event.sequence for event in events] == [*range(1, len(events) + 1)]
        assert [event.data["step"] for event in events if event.type == STEP_STARTED] == [1, 2]
        stored = await lab.row(row.id)
        assert stored and stored.steps == 2

    async def test_what_cannot_be_written_harms_no_other_run(self, lab: Lab) -> None:
        """An event with half a surrogate pair, which is not valid UTF-8, harms no other run."""
        bad, good = await lab.run(), await lab.run()
        odd, writer = lab.writer(bad), lab.writer(good)
        odd.add(STEP_STARTED, {"text": "\ud800"})
        writer.add(STEP_STARTED, {"step": 1})
        async with asyncio.timeout(30):
            wrong, fine = await asyncio.gather(
                odd.commit(), writer.commit(), return_exceptions=True
            )
        assert (type(wrong), fine) == (UnicodeEncodeError, None)
        with pytest.raises(UnicodeEncodeError):
            odd.add(STEP_STARTED, {"step": 2})
        assert told(await lab.events(good)) == [(1, STEP_STARTED, {"step": 1})]
        assert await lab.events(bad) == []


def deep(levels: int = 100_000) -> dict[str, Any]:
    """Returns an object with more nested levels than an encoder's stack allows."""
    nested: dict[str, Any] = {}
    for _ in range(levels):
        nested = {"a": nested}
    return nested


class TestM6:
    """An event that cannot be written harms only its own run."""

    async def check_others(self, lab: Lab) -> None:
        async with asyncio.timeout(20):
            row = await lab.run()
            writer = lab.writer(row)
            writer.add(STEP_STARTED, {"step": 1})
            await writer.commit()
        assert told(await lab.events(row)) == [(1, STEP_STARTED, {"step": 1})]

    @pytest.mark.parametrize("error", [RecursionError, MemoryError, OverflowError, KeyError])
    async def test_cannot_be_sealed(
        self, lab: Lab, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
    ) -> None:
        bad, good = await lab.run(), await lab.run()
        failing, fine = lab.writer(bad), lab.writer(good)

        def fail(_value: Any) -> bytes:
            raise error

        monkeypatch.setattr(failing.sealer, "seal", fail)
        failing.add(STEP_STARTED, {"step": 1})
        fine.add(STEP_STARTED, {"step": 2})
        async with asyncio.timeout(20):
            with pytest.raises(error):
                await failing.commit()
            await fine.commit()
        assert told(await lab.events(good)) == [(1, STEP_STARTED, {"step": 2})]
        with pytest.raises(error):
            failing.add(STEP_STARTED, {"step": 3})
        await self.check_others(lab)

    async def test_nested_too_deeply(self, lab: Lab) -> None:
        writer = lab.writer(await lab.run())
        writer.add(STEP_STARTED, deep())
        async with asyncio.timeout(20):
            with pytest.raises(RecursionError):
                await writer.commit()
        await self.check_others(lab)

    async def test_larger_than_the_database_takes(self, lab: Lab) -> None:
        if not lab.database.is_sqlite:
            pytest.skip("its limit cannot be lowered")
        bad, good = await lab.run(), await lab.run()
        async with lab.database.engine.connect() as connection:
            driver: Any = (await connection.get_raw_connection()).driver_connection
            limit = driver._conn.setlimit
            await driver._execute(limit, sqlite3.SQLITE_LIMIT_LENGTH, 100_000)
        failing, fine = lab.writer(bad), lab.writer(good)
        failing.add(STEP_STARTED, {"text": "a" * 200_000})
        fine.add(STEP_STARTED, {"step": 2})
        async with asyncio.timeout(20):
            with pytest.raises(DBAPIError):
                await failing.commit()
            await fine.commit()
        assert told(await lab.events(good)) == [(1, STEP_STARTED, {"step": 2})]
        await self.check_others(lab)

    @pytest.mark.fault("c5")
    async def test_database_that_comes_back(
        self, lab: Lab, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(waiting, "RETRY_S", 0.01)
        add, tries = repository.add_events, 0

        async def sometimes(*given: Any) -> None:
            nonlocal tries
            tries += 1
            if tries < 4:
                raise OperationalError("INSERT", {}, sqlite3.OperationalError("disk is full"))
            await add(*given)

        monkeypatch.setattr(repository, "add_events", sometimes)
        await self.check_others(lab)
        assert tries == 4


class TestFences:
    async def test_replaced_token(self, lab: Lab) -> None:
        row = await lab.run()
        writer = lab.writer(row)
        writer.add(STEP_STARTED, {"step": 1})
        writer.set({"steps": 1})
        await writer.commit()
        async with lab.database.transaction() as session:
            (await session.get_one(Run, row.id)).lock_token = "of another"
        with lab.followers.follow(row.id) as follower:
            writer.add(STEP_STARTED, {"step": 2})
            with pytest.raises(LostError):
                writer.set({"steps": 2})
                await writer.commit()
            assert follower.take() == []
        # Once the loss is known, the writer raises immediately.
        with pytest.raises(LostError):
            writer.add(STEP_STARTED, {"step": 3})
        with pytest.raises(LostError):
            await writer.commit()
        assert told(await lab.events(row)) == [(1, STEP_STARTED, {"step": 1})]
        stored = await lab.row(row.id)
        assert stored and stored.steps == 1

    async def test_new_holder_goes_on(self, lab: Lab) -> None:
        row = await lab.run()
        old = lab.writer(row)
        old.add(STEP_STARTED, {"step": 1})
        await old.commit()
        async with lab.database.transaction() as session:
            (await session.get_one(Run, row.id)).lock_token = row.lock_token = "of another"
        new = lab.writer(row, last=1)
        # Both write at the same moment.
        old.add(STEP_STARTED, {"step": 100})
        lost = asyncio.create_task(old.commit())
        await asyncio.sleep(0)
        new.add(STEP_STARTED, {"step": 2})
        await new.commit()
        with pytest.raises(LostError):
            await lost
        assert [event.data["step"] for event in await lab.events(row)] == [1, 2]

    @pytest.mark.fault("e4")
    async def test_deleted_run(self, lab: Lab) -> None:
        row, other = await lab.run(), await lab.run()
        writer, other_writer = lab.writer(row), lab.writer(other)
        writer.add(STEP_STARTED, {"step": 1})
        await writer.commit()
        async with lab.database.transaction() as session:
            await repository.delete_runs(session, [row.id])
        writer.add(STEP_STARTED, {"step": 2})
        other_writer.add(STEP_STARTED, {"step": 1})
        writer.set({"steps": 2})
        late, fine = await asyncio.gather(
            writer.commit(), other_writer.commit(), return_exceptions=True
        )
        assert (type(late), fine) == (LostError, None)
        assert await lab.row(row.id) is None
        async with lab.database.reading() as session:
            assert not (await repository.events(session, row.id, after=0, limit=10)).rows
        assert len(await lab.events(other)) == 1

    @pytest.mark.fault("e4")
    async def test_many_deleted_while_they_are_written(self, lab: Lab) -> None:
        """Writing and deleting lock many rows in the same order. Otherwise they would deadlock."""
        rows = [await lab.run() for _ in range(60)]
        written: Counter[str] = Counter()

        async def write(row: Run, order: int) -> None:
            await asyncio.sleep(0.001 * order)
            writer = lab.writer(row)
            with contextlib.suppress(LostError):
                while True:
                    writer.add(STEP_STARTED, {"step": written[row.id] + 1})
                    writer.set({"steps": written[row.id] + 1})
                    await writer.commit()
                    written[row.id] += 1

        # The newest run is written first.
        writing = [write(row, order) for order, row in enumerate(reversed(rows))]
        tasks = [asyncio.create_task(item) for item in writing]
        async with asyncio.timeout(60):
            for at in range(0, 60, 20):
                some = [row.id for row in rows[at : at + 20]]
                while not all(written[item] for item in some):
                    await asyncio.sleep(0.01)
                async with lab.database.transaction() as session:
                    await repository.delete_runs(session, some)
            await asyncio.gather(*tasks)
        async with lab.database.reading() as session:
            assert (await session.scalars(select(RunEvent))).all() == []

    async def test_rolled_back_append_is_not_told(self, lab: Lab) -> None:
        row = await lab.run()
        new_events = [(STEP_STARTED, {"step": 1})]
        with lab.followers.follow(row.id) as follower:
            with contextlib.suppress(OSError):
                async with lab.database.transaction() as session:
                    await append(session, lab.followers, row, lab.sealer(row), new_events)
                    raise OSError
            assert follower.take() == []
            async with lab.database.transaction() as session:
                await append(session, lab.followers, row, lab.sealer(row), new_events)
            assert told(follower.take()) == [(1, *new_events[0])] == told(await lab.events(row))


class TestSealing:
    async def test_rows_hold_nothing_in_the_clear(self, lab: Lab) -> None:
        row = await lab.run()
        writer = lab.writer(row)
        writer.add(STEP_STARTED, {"text": "canary"})
        writer.add(STEP_STARTED, {"text": "canary"})
        await writer.commit()
        async with lab.database.reading() as session:
            page = await repository.events(session, row.id, after=0, limit=10)
        first, second = page.rows
        assert b"canary" not in first.data + second.data
        assert first.data != second.data, "the same text is not seen to be the same"

    async def test_another_key_opens_nothing(
        self, lab: Lab, tmp_path_factory: pytest.TempPathFactory
    ) -> None:
        row, other = await lab.run(), await lab.run()
        sealed = lab.sealer(row).seal({"a": 1})
        assert lab.sealer(row).unseal(sealed) == {"a": 1}
        with pytest.raises(InternalError):
            lab.sealer(other).unseal(sealed)
        with pytest.raises(InternalError):
            lab.sealer(row).unseal(sealed[:-1] + bytes([sealed[-1] ^ 1]))
        with pytest.raises(InternalError):
            Sealer(ServerSecret(tmp_path_factory.mktemp("other")), row.content_key)


class TestFollowing:
    def parts(self, lab: Lab, row: Run) -> AsyncGenerator[bytes]:
        context: Any = SimpleNamespace(
            database=lab.database, secret=lab.secret, followers=lab.followers
        )
        place = stream.RunPath("agent_runs", row.id, "acct_runs")
        return stream._parts(context, place, 0)

    async def stream(self, lab: Lab, row: Run) -> list[dict[str, Any]]:
        content = b"".join([part async for part in self.parts(lab, row)])
        return [*parsed(content.decode().split("\n")[:-1])]

    async def test_that_falls_behind(self, lab: Lab) -> None:
        """A connection falls behind by more events than its queue holds, in the middle and at the
        end.
        """
        row = await lab.run()
        writer, content, read = lab.writer(row), b"", 0
        parts = self.parts(lab, row)
        for more in (1, 700, 2, 700):
            for number in range(more):
                writer.add(STEP_STARTED, {"step": number})
                if number % 100 == 0:
                    await writer.commit()
            await writer.commit()
            # The reader reads some events and then pauses.
            async for part in parts:
                content += part
                read += part.startswith(b"id: ")
                if read % 350 == 1:
                    break
        async with lab.database.transaction() as session:
            last_events = [("run.completed", {})]
            await append(session, lab.followers, row, lab.sealer(row), last_events)
        content += b"".join([part async for part in parts])
        streamed = [*parsed(content.decode().split("\n")[:-1])]
        assert [event["sequence"] for event in streamed] == [*range(1, 1405)]
        assert [event["type"] for event in streamed][-1] == "run.completed"

    async def test_run_of_another_server(self, lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
        """A stream finds the events of another server's run by polling after a silence. This server
        receives no notification of them.
        """
        if lab.database.is_sqlite:
            pytest.skip("one server has the database")
        monkeypatch.setattr(stream, "SILENCE_S", 0.05)
        row, elsewhere = await lab.run(), Followers()
        streaming = asyncio.create_task(self.stream(lab, row))
        for new_event in ((STEP_STARTED, {"step": 1}), ("run.completed", {})):
            await asyncio.sleep(0.2)
            async with lab.database.transaction() as session:
                await append(session, elsewhere, row, lab.sealer(row), [new_event])
        async with asyncio.timeout(10):
            assert [event["type"] for event in await streaming] == [STEP_STARTED, "run.completed"]

    async def test_that_another_server_deletes(
        self, lab: Lab, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        if lab.database.is_sqlite:
            pytest.skip("one server has the database")
        monkeypatch.setattr(stream, "SILENCE_S", 0.05)
        row = await lab.run()
        streaming = asyncio.create_task(self.stream(lab, row))
        await asyncio.sleep(0.2)
        async with lab.database.transaction() as session:
            await repository.delete_runs(session, [row.id])
        async with asyncio.timeout(10):
            assert await streaming == [{"type": "run.deleted"}]

    async def test_ends_with_the_server(self, lab: Lab) -> None:
        row = await lab.run()
        early = asyncio.create_task(self.stream(lab, row))
        await asyncio.sleep(0.1)
        assert not early.done()
        lab.followers.end()
        async with asyncio.timeout(10):
            assert await early == await self.stream(lab, row) == []


class TestRetention:
    async def test_what_is_old(self, lab: Lab) -> None:
        """Runs that ended long ago, or have waited as long, are deleted. Runs at work are never
        deleted.
        """
        now = db.now()
        days = {number: now - timedelta(days=number) for number in (1, 29, 31, 90)}
        waits = {"status": "requires_action", "lock_token": None}
        recent = [
            await lab.run(created_at=days[90]),
            await lab.run(created_at=days[90], status="queued", lock_token=None),
            await lab.run(created_at=days[90], status="completed", completed_at=days[29]),
            await lab.run(created_at=days[29], **waits),
            heard_of := await lab.run(created_at=days[90], **waits),
        ]
        old = [
            await lab.run(created_at=days[90], status="completed", completed_at=days[31]),
            await lab.run(created_at=days[90], status="cancelled", completed_at=days[90]),
            forgotten := await lab.run(created_at=days[90], **waits),
        ]
        async with lab.database.transaction() as session:
            for row, at in ((heard_of, days[1]), (forgotten, days[31])):
                event = JournalEvent(1, "run.requires_action", {}, at)
                await repository.add_events(session, sealed(row.id, lab.sealer(row), [event]))
        cancelled: list[str] = []
        context: Any = SimpleNamespace(
            database=lab.database,
            settings=SimpleNamespace(agent_run_retention_days=30),
            followers=lab.followers,
            jobs=SimpleNamespace(cancel=cancelled.append),
        )
        await run_service.forget_old(context, now)
        async with lab.database.reading() as session:
            remaining = (await session.scalars(select(Run.id))).all()
            events = (await session.scalars(select(RunEvent.run_id))).all()
        assert sorted(remaining) == sorted(row.id for row in recent)
        assert events == [heard_of.id]
        assert sorted(cancelled) == sorted(row.id for row in old)


class TestFollower:
    def test_that_is_slow_sees_a_gap(self) -> None:
        followers = Followers()
        events = [JournalEvent(number, STEP_STARTED, {}, db.now()) for number in range(1, 1001)]
        with followers.follow("run_1") as slow, followers.follow("run_1") as quick:
            for event in events:
                followers.publish("run_1", [event])
                assert quick.take() == [event]
            received = slow.take()
        assert received == events[-len(received) :]
        assert received[0].sequence > 1, "the oldest were dropped"
        followers.publish("run_1", events)
        assert slow.take() == [], "nobody follows any more"
