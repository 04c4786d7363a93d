"""Transactions on both databases are atomic, even if they are interrupted."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from stoker.store.db import Database, Session
from tests.support.databases import migrated, postgres_url

__all__ = ["migrated", "postgres_url"]


@pytest.fixture
async def database(migrated: Database) -> Database:
    async with migrated.transaction() as session:
        await session.execute(text("DROP TABLE IF EXISTS things"))
        await session.execute(text("CREATE TABLE things (id INTEGER PRIMARY KEY, v TEXT NOT NULL)"))
    return migrated


async def put(session: Session, number: int, value: str | None = "") -> None:
    statement = text("INSERT INTO things (id, v) VALUES (:id, :v)")
    await session.execute(statement, {"id": number, "v": value})


async def held(database: Database) -> list[int]:
    async with database.reading() as session:
        return list((await session.execute(text("SELECT id FROM things ORDER BY id"))).scalars())


async def test_all_or_nothing(database: Database) -> None:
    calls: list[str] = []
    async with database.transaction() as session:
        await put(session, 1)
        session.after_commit(lambda: calls.append("first"))
        assert calls == []
    with pytest.raises(IntegrityError):
        async with database.transaction() as session:
            await put(session, 2)
            session.after_commit(lambda: calls.append("second"))
            await put(session, 3, None)
    with pytest.raises(ZeroDivisionError):
        async with database.transaction() as session:
            await put(session, 4)
            raise ZeroDivisionError
    assert await held(database) == [1]
    assert calls == ["first"]


async def test_what_statements_answer(database: Database) -> None:
    async with database.transaction() as session:
        many = text("INSERT INTO things (id, v) VALUES (:id, :v)")
        await session.execute(many, [{"id": number, "v": str(number)} for number in range(5)])
        changed: Any = await session.execute(text("UPDATE things SET v = 'x' WHERE id < 3"))
        assert changed.rowcount == 3
        gone = await session.execute(text("DELETE FROM things WHERE id = 4 RETURNING id, v"))
        assert gone.all() == [(4, "4")]
        none = await session.execute(text("SELECT id AS number, v FROM things WHERE id = 4"))
        assert list(none.keys()) == ["number", "v"]
        assert none.all() == []


async def test_a_reader_sees_one_state(database: Database) -> None:
    async with database.reading() as session:
        await session.connection(execution_options=await repeatable(database))
        before = (await session.execute(text("SELECT count(*) FROM things"))).scalar_one()
        async with database.transaction() as writer:
            await put(writer, 1)
        after = (await session.execute(text("SELECT count(*) FROM things"))).scalar_one()
    assert (before, after) == (0, 0)
    assert await held(database) == [1]


async def repeatable(database: Database) -> dict[str, Any]:
    return {} if database.is_sqlite else {"isolation_level": "REPEATABLE READ"}


@pytest.mark.parametrize("steps", range(12))
async def test_cancelled_anywhere(database: Database, steps: int) -> None:
    """A cancelled transaction leaves no data behind, and later transactions wait for no lock."""

    async def work() -> None:
        async with database.transaction() as session:
            await put(session, 1)
            await put(session, 2)

    task = asyncio.create_task(work())
    for _ in range(steps):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with asyncio.timeout(10), database.transaction() as session:
        await put(session, 3)
    assert await held(database) in ([3], [1, 2, 3])


class LateAnswers:
    """Delays the databases' answers to commits until `go_on` is set, in any order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.committed: list[asyncio.Event] = []
        self.go_on: list[asyncio.Event] = []
        commit = Session.commit

        async def late(session: Session) -> None:
            await commit(session)
            number = session.info["number"]
            self.committed[number].set()
            await self.go_on[number].wait()

        monkeypatch.setattr(Session, "commit", late)

    def number(self, session: Session) -> int:
        session.info["number"] = len(self.committed)
        self.committed.append(asyncio.Event())
        self.go_on.append(asyncio.Event())
        return session.info["number"]


async def test_l4_what_is_committed_is_told_though_cancelled(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Listeners are called even if the task is cancelled twice between the commit and the
    listeners.
    """
    calls: list[str] = []
    with monkeypatch.context() as patch:
        late = LateAnswers(patch)

        async def work() -> None:
            async with database.transaction() as session:
                late.number(session)
                await put(session, 1)
                session.after_commit(lambda: calls.append("first"))

        task = asyncio.create_task(work())
        while not late.committed:
            await asyncio.sleep(0)
        await late.committed[0].wait()
        for _ in range(2):
            task.cancel()
            await asyncio.sleep(0)
        assert (calls, task.done()) == ([], False)
        late.go_on[0].set()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert calls == ["first"]
    assert await held(database) == [1]


async def test_l4_listeners_hear_of_commits_in_their_order(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    with monkeypatch.context() as patch:
        late = LateAnswers(patch)

        async def work() -> None:
            async with database.transaction() as session:
                number = late.number(session)
                await put(session, number)
                session.after_commit(lambda: calls.append(number))

        first = asyncio.create_task(work())
        while not late.committed:
            await asyncio.sleep(0)
        await late.committed[0].wait()
        second = asyncio.create_task(work())
        for _ in range(20):
            await asyncio.sleep(0.005)
            # The answer to the second commit would arrive first.
            for go_on in late.go_on[1:]:
                go_on.set()
        late.go_on[0].set()
        while not second.done():
            await asyncio.sleep(0)
            for go_on in late.go_on[1:]:
                go_on.set()
        await asyncio.gather(first, second)
    assert calls == [0, 1]


async def test_a_listener_that_fails_keeps_nothing_from_the_others(database: Database) -> None:
    calls: list[str] = []
    async with database.transaction() as session:
        await put(session, 1)
        session.after_commit(lambda: calls.append("first"))
        session.after_commit(lambda: calls[5])
        session.after_commit(lambda: calls.append("third"))
    assert calls == ["first", "third"]
    assert await held(database) == [1]


async def test_cancelled_while_a_statement_runs(tmp_path: Path) -> None:
    database = Database(f"sqlite+aiosqlite:///{tmp_path}/slow.db")
    running, go_on = threading.Event(), threading.Event()

    def slow(_value: int) -> int:
        running.set()
        go_on.wait(10)
        return 1

    async def work() -> None:
        async with database.transaction() as session:
            raw = await (await session.connection()).get_raw_connection()
            driver: Any = raw.driver_connection
            await driver.create_function("slow", 1, slow)
            await session.execute(text("CREATE TABLE late AS SELECT slow(1)"))

    task = asyncio.create_task(work())
    await asyncio.to_thread(running.wait, 10)
    task.cancel()
    threading.Timer(0.2, go_on.set).start()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with asyncio.timeout(10), database.transaction() as session:
        await session.execute(text("CREATE TABLE after_it (id INTEGER)"))
    async with database.reading() as session:
        result = await session.execute(text("SELECT name FROM sqlite_master"))
        assert result.scalars().all() == ["after_it"]
    await database.close()


async def test_writers_stand_in_a_line(database: Database) -> None:
    async def add() -> None:
        async with database.transaction() as session:
            result = await session.execute(text("SELECT coalesce(max(id), 0) FROM things"))
            await asyncio.sleep(0)
            await put(session, result.scalar_one() + 1)

    if not database.is_sqlite:
        pytest.skip("PostgreSQL's writers work side by side")
    await asyncio.gather(*(add() for _ in range(50)))
    assert await held(database) == list(range(1, 51))


async def test_a_lost_database_is_said(tmp_path: Path) -> None:
    database = Database(f"sqlite+aiosqlite:///{tmp_path}/none/x.db")
    with pytest.raises(SQLAlchemyError, match="unable to open"):
        async with database.reading() as session:
            await session.execute(text("SELECT 1"))
    await database.close()


async def test_what_a_killed_server_was_about_to_erase(tmp_path: Path) -> None:
    """Rows that were deleted and committed stay in the log until its last reader ends and it is
    truncated.
    """
    path = tmp_path / "stoker.db"
    url, secret = f"sqlite+aiosqlite:///{path}", "what was said in it"

    def is_kept() -> bool:
        return any(secret.encode() in file.read_bytes() for file in tmp_path.iterdir())

    async def write(database: Database, statement: str) -> None:
        async with database.transaction() as session:
            await session.execute(text(statement), {"v": secret} if ":v" in statement else {})

    killed = Database(url)
    await write(killed, "CREATE TABLE things (v TEXT NOT NULL)")
    await write(killed, "INSERT INTO things VALUES (:v)")
    await write(killed, "DELETE FROM things")
    assert is_kept()
    database = Database(url)
    await database.scrub_again()
    assert not is_kept()
    # The scrub is repeated only once.
    await write(database, "INSERT INTO things VALUES (:v)")
    await write(database, "DELETE FROM things")
    await database.scrub_again()
    assert is_kept()
    await database.scrub()
    assert not is_kept()
    await database.close()
    await killed.close()
