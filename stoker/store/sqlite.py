"""SQLite for SQLAlchemy, with one trip to the connection's thread per statement.

SQLAlchemy's cursor needs four trips (open, execute, fetch, close) of a quarter of a millisecond
each. The beginning of a transaction needs one more. These trips take longer than the statements
themselves.
"""

import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

import aiosqlite
from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

BEGIN = "sqlite_begin"
"""Execution option for the mode of transactions: DEFERRED, or IMMEDIATE for writers."""
_PRAGMAS = (
    "journal_mode=WAL",
    # An acknowledged write survives a power cut, not only a killed process.
    "synchronous=FULL",
    "foreign_keys=ON",
    "busy_timeout=15000",
    # Deleted data is overwritten.
    "secure_delete=ON",
)

_Rows = list[Any]


def create_engine(url: str) -> AsyncEngine:
    async def connect() -> SqliteConnection:
        arguments, options = engine.dialect.create_connect_args(engine.url)
        connection = SqliteConnection(*arguments, **options)
        await connection
        return connection

    # Parameters are data of clients. Errors and logs must not repeat them.
    engine = create_async_engine(url, async_creator=connect, hide_parameters=True)

    @event.listens_for(engine.sync_engine, "begin")
    def on_begin(connection: Any) -> None:
        how = connection.get_execution_options().get(BEGIN, "IMMEDIATE")
        connection.connection.driver_connection.begin(how)

    return engine


class SqliteConnection(aiosqlite.Connection):
    """Connection that fetches the rows of each statement immediately, and begins a transaction with
    its first statement.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """Accepts the arguments of `sqlite3.connect`."""

        def connect() -> sqlite3.Connection:
            # The driver's own BEGIN comes too late and is always deferred, so it is sent
            # explicitly.
            raw = sqlite3.connect(*arguments, **options, isolation_level=None)
            for pragma in _PRAGMAS:
                raw.execute(f"PRAGMA {pragma}")
            return raw

        super().__init__(connect, iter_chunk_size=1)
        self._begin = ""
        self._has_begun = False

    def begin(self, how: str) -> None:
        self._begin = f"BEGIN {how}"

    def cursor(self) -> "Cursor":  # type: ignore[override]
        return Cursor(self)

    async def run(self, work: Callable[[sqlite3.Cursor], object]) -> tuple[Any, int, Any, _Rows]:
        """Runs `work` with a new cursor. Returns its description, row count, last row's id and
        rows.
        """
        begin, self._begin = self._begin, ""
        # Set before the transaction begins: a task that is cancelled in between must roll back.
        self._has_begun = self._has_begun or bool(begin)
        return await self._execute(self._run, begin, work)  # pyright: ignore[reportUnknownMemberType]

    def _run(
        self, begin: str, work: Callable[[sqlite3.Cursor], object]
    ) -> tuple[Any, int, Any, _Rows]:
        with closing(self._conn.cursor()) as cursor:
            if begin:
                cursor.execute(begin)
            work(cursor)
            rows = cursor.fetchall() if cursor.description else []
            return cursor.description, cursor.rowcount, cursor.lastrowid, rows

    async def commit(self) -> None:
        await self._end(super().commit)

    async def rollback(self) -> None:
        await self._end(super().rollback)

    async def _end(self, end: Callable[[], Any]) -> None:
        self._begin = ""
        if self._has_begun:
            await end()
            self._has_begun = False


class Cursor:
    """Implements only the cursor methods that SQLAlchemy uses. All rows are already fetched."""

    def __init__(self, connection: SqliteConnection) -> None:
        self._connection = connection
        self.arraysize = 1
        self.description: Any = None
        self.rowcount = -1
        self.lastrowid: Any = None
        self._rows: _Rows = []

    async def __aenter__(self) -> "Cursor":
        return self

    async def execute(self, sql: str, parameters: Any = ()) -> None:
        await self._run(lambda cursor: cursor.execute(sql, parameters))

    async def executemany(self, sql: str, parameters: Sequence[Any]) -> None:
        await self._run(lambda cursor: cursor.executemany(sql, parameters))

    async def _run(self, work: Callable[[sqlite3.Cursor], object]) -> None:
        self.description, self.rowcount, self.lastrowid, self._rows = await self._connection.run(
            work
        )

    async def fetchall(self) -> _Rows:
        rows, self._rows = self._rows, []
        return rows

    async def close(self) -> None:
        self._rows = []
