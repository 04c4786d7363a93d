"""Database: SQLite (WAL) by default, PostgreSQL by URL.

A service commits nothing. `Database.transaction` is the unit of work: a request's changes commit
together before its response is sent. Callbacks that inform the rest of the process are registered
with `after_commit`.
"""

import asyncio
import logging
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Coroutine,
    Mapping,
    Sequence,
)
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from datetime import UTC, datetime
from typing import Any, TypeVar

from sqlalchemy import DateTime, Dialect, Executable, MetaData, Row, text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import DeclarativeBase
from sqlalchemy.types import TypeDecorator

from stoker.store import postgres, sqlite
from stoker.store.changes import Changes, WatchedSession

log = logging.getLogger(__name__)

T = TypeVar("T")

_ONE_MOMENT = {"isolation_level": "REPEATABLE READ"}
NO_CONTROL = r"^[^\x00-\x1f\x7f]+$"
"""Pattern of strings that are stored or looked up. PostgreSQL rejects a NUL."""


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
    """Awaits work. If the caller is cancelled, raises `CancelledError` after the work is done."""
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
    """An `AsyncSession` that notifies listeners after its transaction has committed."""

    sync_session_class = WatchedSession

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._after_commit: list[Callable[[], None]] = []
        self._at_the_end: dict[str, Callable[[], Awaitable[None]]] = {}

    def at_the_end(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        """Registers a write for the end of the transaction, once per name. So rows that all
        transactions wait for are locked last, and only for the duration of a commit.
        """
        self._at_the_end[name] = work

    async def finish(self) -> None:
        """Runs the writes that are registered for the end."""
        if self._at_the_end:
            await self.flush()
            for work in self._at_the_end.values():
                await work()
            self._at_the_end = {}

    def after_commit(self, callback: Callable[[], None]) -> None:
        """Calls `callback` if the changes so far become durable, and only then."""
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
                # The transaction is committed despite the error, and the other listeners are
                # notified.
                log.exception("transaction listener failed")


class Database:
    def __init__(self, url: str, *, server_id: str = "", connections: int = 15) -> None:
        """
        Args:
            server_id: id of this server among the servers of a PostgreSQL.
            connections: maximum number of connections to PostgreSQL.
        """
        self.url = url
        self.server_id = server_id
        self.is_sqlite = url.startswith("sqlite")
        """True for SQLite. Then no other process uses the database."""
        self.engine: AsyncEngine
        # SQLite has one writer at a time. Waiting writers poll, and one that polls at the wrong
        # moments waits forever. This lock makes them wait in a queue.
        self._turn: AbstractAsyncContextManager[Any] = nullcontext()
        if self.is_sqlite:
            self.engine = sqlite.create_engine(url)
            self._turn = asyncio.Lock()
        else:
            self.engine = postgres.create_engine(url, connections)
        self.changes = Changes()
        self._commits = asyncio.Lock()
        # A server that was killed may have left a scrub undone.
        self._is_scrub_due = self.is_sqlite
        # All statements of a reader see the same snapshot. SQLite always works this way.
        one_moment = {sqlite.BEGIN: "DEFERRED"} if self.is_sqlite else _ONE_MOMENT
        self._reading = self.engine.execution_options(**one_moment)
        # A single statement of PostgreSQL then takes one round trip instead of three.
        self._autocommit = (
            self._reading
            if self.is_sqlite
            else self.engine.execution_options(isolation_level="AUTOCOMMIT")
        )
        # SQLite rejects a reader that starts to write while another one writes. So writers declare
        # themselves at BEGIN.
        self._writing = self.engine.execution_options(**{sqlite.BEGIN: "IMMEDIATE"})

    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator[Session]:
        """Opens a unit of work that may write. Commits at the end, rolls back on any error."""
        async with self._turn, Session(self._writing, expire_on_commit=False) as session:
            self.changes.watch(session)
            yield session
            await session.finish()
            if session.has_listeners:
                # Waits for row locks here, outside of the commit lock, so that it blocks no other
                # commit.
                await session.flush()
            # A task that is cancelled during the commit may have committed. Its listeners are then
            # notified.
            await uncut(self._commit(session))

    async def _commit(self, session: Session) -> None:
        if not session.has_listeners:
            await session.commit()
            self.changes.tell(session)
            return
        # PostgreSQL's responses to two commits may arrive in a different order than the commits.
        async with self._commits:
            await session.commit()
            session.committed()
            self.changes.tell(session)

    @asynccontextmanager
    async def between_commits(self) -> AsyncGenerator[None]:
        """Blocks commits of this process. When the context is entered, listeners know of all
        earlier commits.
        """
        async with self._commits:
            yield

    @asynccontextmanager
    async def reading(self) -> AsyncGenerator[Session]:
        async with Session(self._reading, expire_on_commit=False) as session:
            yield session

    async def poll(
        self, statement: Executable, parameters: Mapping[str, Any] | None = None
    ) -> Sequence[Row[Any]]:
        """Returns the rows of one statement. On PostgreSQL the statement is a transaction of its
        own and may write. SQLite permits only reads.

        For statements that run every second: a session costs as much as the statement itself.
        """
        async with self._autocommit.connect() as connection:
            return (await connection.execute(statement, parameters)).all()

    async def ping(self) -> None:
        """Runs a statement that reads no table. Raises an error if the database does not answer."""
        async with self.reading() as session:
            await session.execute(text("SELECT 1"))

    async def migrate(self) -> None:
        """Migrates the schema. If several servers start at once, they migrate one after another.

        Raises `stoker.store.schema.SchemaError` if this release cannot use the database.
        """
        # Alembic takes long to import.
        from stoker.store import migrating, schema

        if not self.is_sqlite:
            await migrating.migrate(self.url)
            return
        async with self.engine.connect() as connection:
            await connection.run_sync(schema.upgrade)

    async def scrub(self) -> None:
        """Removes deleted data from the database files.

        SQLite overwrites deleted rows (`secure_delete`). However, its log keeps old pages until
        they are copied into the database and the log is truncated. Vacuuming PostgreSQL's files is
        left to its operator.
        """
        if not self.is_sqlite:
            return
        self._is_scrub_due = True
        async with self._turn, self.engine.connect() as connection:
            raw = await connection.get_raw_connection()
            driver: Any = raw.driver_connection
            # Runs outside any transaction. Waits for readers and writers as long as any statement
            # does.
            ((is_busy, _, _),) = await driver.execute_fetchall("PRAGMA wal_checkpoint(TRUNCATE)")
            self._is_scrub_due = bool(is_busy)

    async def scrub_again(self) -> None:
        """Repeats a scrub that failed because the disk was full, a reader was active for long, or
        the server ended.
        """
        if self._is_scrub_due:
            await self.scrub()

    async def close(self) -> None:
        await self.engine.dispose()
