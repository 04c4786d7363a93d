"""The database: SQLite (WAL) by default, PostgreSQL by URL.

A service commits nothing. `Database.transaction` is the unit of work: a request's changes commit
together before its answer is sent, and what the rest of the process must then learn is registered
with `after_commit`.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from datetime import UTC, datetime
from typing import Any, TypeVar

from sqlalchemy import DateTime, Dialect, MetaData, text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import DeclarativeBase
from sqlalchemy.types import TypeDecorator

from stoker.store import postgres, sqlite
from stoker.store.changes import Changes, WatchedSession

log = logging.getLogger(__name__)

T = TypeVar("T")

_MIGRATING = 0x73746F6B01
"""PostgreSQL's advisory lock of whoever brings the schema up to date."""
_ONE_MOMENT = {"isolation_level": "REPEATABLE READ"}
NO_CONTROL = r"^[^\x00-\x1f\x7f]+$"
"""Pattern of strings that are stored or looked up: PostgreSQL refuses a NUL."""


class Base(DeclarativeBase):
    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_name)s",
            "uq": "uq_%(table_name)s_%(column_0_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
            "pk": "pk_%(table_name)s",
        }
    )


class UtcDateTime(TypeDecorator[datetime]):
    """An aware UTC datetime on both databases (SQLite would drop the zone)."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return value.astimezone(UTC) if value else None

    def process_result_value(self, value: Any | None, dialect: Dialect) -> datetime | None:
        return value.replace(tzinfo=UTC) if value and value.tzinfo is None else value


def now() -> datetime:
    return datetime.now(UTC)


async def uncut(work: Coroutine[Any, Any, T]) -> T:
    """Await work; where that is cancelled, raise `CancelledError` once the work is done."""
    task = asyncio.create_task(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            cancelled = error
        except Exception:
            break
    if cancelled:
        raise cancelled
    return task.result()


class Session(AsyncSession):
    """An `AsyncSession` that tells listeners once its transaction has committed."""

    sync_session_class = WatchedSession

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._after_commit: list[Callable[[], None]] = []
        self._at_the_end: dict[str, Callable[[], Awaitable[None]]] = {}

    def at_the_end(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        """Have something written as the transaction's last, once under a name: rows that everybody
        waits for are locked for no longer than a commit takes, and after all others.
        """
        self._at_the_end[name] = work

    async def finish(self) -> None:
        """Write what is to be written as the last."""
        if self._at_the_end:
            await self.flush()
            for work in self._at_the_end.values():
                await work()
            self._at_the_end = {}

    def after_commit(self, callback: Callable[[], None]) -> None:
        """Call `callback` when, and only when, the changes made so far are durable."""
        self._after_commit.append(callback)

    @property
    def has_listeners(self) -> bool:
        return bool(self._after_commit)

    def committed(self) -> None:
        callbacks, self._after_commit = self._after_commit, []
        for callback in callbacks:
            try:
                callback()
            except Exception:
                # It is committed all the same, and the others are told.
                log.exception("transaction listener failed")


class Database:
    def __init__(self, url: str, *, server_id: str = "", connections: int = 15) -> None:
        """
        Args:
            server_id: who this is among the servers of a PostgreSQL.
            connections: to PostgreSQL, at most.
        """
        self.url = url
        self.server_id = server_id
        self.is_sqlite = url.startswith("sqlite")
        """Then no other process uses it."""
        self.engine: AsyncEngine
        # SQLite has one writer at a time, and those who wait for it look again now and then: who
        # looks at the wrong moments waits for ever. Here they stand in a line.
        self._turn: AbstractAsyncContextManager[Any] = nullcontext()
        if self.is_sqlite:
            self.engine = sqlite.create_engine(url)
            self._turn = asyncio.Lock()
        else:
            self.engine = postgres.create_engine(url, connections)
        self.changes = Changes()
        self._commits = asyncio.Lock()
        # A server that was killed may have been about to.
        self._is_scrub_due = self.is_sqlite
        # What a reader asks for in several statements is of one moment: SQLite's always are.
        one_moment = {sqlite.BEGIN: "DEFERRED"} if self.is_sqlite else _ONE_MOMENT
        self._reading = self.engine.execution_options(**one_moment)
        # SQLite would fail a reader that turns writer while another one writes: say so at BEGIN.
        self._writing = self.engine.execution_options(**{sqlite.BEGIN: "IMMEDIATE"})

    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator[Session]:
        """A unit of work that may write: commits at the end, rolls back on any error."""
        async with self._turn, Session(self._writing, expire_on_commit=False) as session:
            self.changes.watch(session)
            yield session
            await session.finish()
            if session.has_listeners:
                # What waits for rows of others does so here, where it holds up nobody.
                await session.flush()
            # Whoever is cancelled while it commits may have committed: then listeners hear of it.
            await uncut(self._commit(session))

    async def _commit(self, session: Session) -> None:
        if not session.has_listeners:
            await session.commit()
            self.changes.tell(session)
            return
        # PostgreSQL's answers to two commits may come in another order than they were made in.
        async with self._commits:
            await session.commit()
            session.committed()
            self.changes.tell(session)

    @asynccontextmanager
    async def between_commits(self) -> AsyncGenerator[None]:
        """What of this process' transactions has been committed was told, until the end of this."""
        async with self._commits:
            yield

    @asynccontextmanager
    async def reading(self) -> AsyncGenerator[Session]:
        async with Session(self._reading, expire_on_commit=False) as session:
            yield session

    async def migrate(self) -> None:
        """Bring the schema up to date; where several servers start at once, one after another."""
        if self.is_sqlite:
            async with self.engine.begin() as connection:
                await connection.run_sync(_upgrade)
            return
        async with postgres.patient_engine(self.url).begin() as connection:
            await connection.execute(text(f"SELECT pg_advisory_xact_lock({_MIGRATING})"))
            await connection.run_sync(_upgrade)

    async def scrub(self) -> None:
        """Have what was deleted leave the files too.

        SQLite overwrites deleted rows (`secure_delete`), but its log keeps pages as they were until
        they are copied into the database and the log is cut off. PostgreSQL's files are for its
        operator to vacuum.
        """
        if not self.is_sqlite:
            return
        self._is_scrub_due = True
        async with self._turn, self.engine.connect() as connection:
            raw = await connection.get_raw_connection()
            driver: Any = raw.driver_connection
            # Outside any transaction; waits for readers and writers as long as any statement does.
            ((is_busy, _, _),) = await driver.execute_fetchall("PRAGMA wal_checkpoint(TRUNCATE)")
            self._is_scrub_due = bool(is_busy)

    async def scrub_again(self) -> None:
        """What could not be done: the disk was full, somebody read for long, the server ended."""
        if self._is_scrub_due:
            await self.scrub()

    async def close(self) -> None:
        await self.engine.dispose()


def _upgrade(connection: Any) -> None:
    from pathlib import Path

    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
