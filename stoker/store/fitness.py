"""Checks read-only whether a PostgreSQL is suitable for this release."""

import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from sqlalchemy import func, select, text

from stoker.store import db, schema
from stoker.store.db import Database, Session

_READINGS = 3
"""Number of clock readings. The fastest reading is the most accurate."""


class Schema(StrEnum):
    """State of a database's schema for this release."""

    NONE = "none"
    """The database has no tables."""
    OLDER = "older"
    CURRENT = "current"
    COMPATIBLE = "compatible"
    """A newer release has migrated the schema, and this release can use the result."""
    NEWER = "newer"
    """The schema is newer or foreign: this release cannot use it."""


@dataclass(frozen=True, kw_only=True)
class Condition:
    version: str
    """Version of PostgreSQL."""
    schema: Schema
    revision: str
    """Revision of the existing schema. Empty if none exists."""
    wanted: str
    """Newest revision that this release knows."""
    compatible_from: str = ""
    """Oldest revision whose release works after the next migration. Empty if all that work now
    still do.
    """
    problem: str = ""
    """Reason why this release cannot use the schema, and what to do."""


@dataclass(frozen=True, kw_only=True)
class Clocks:
    """Two clocks at the same moment, in UTC."""

    database: datetime
    here: datetime
    round_trip_s: float
    """Duration of the query in seconds. Both clocks are accurate to half of it."""

    @property
    def ahead_s(self) -> float:
        """Seconds by which the database's clock is ahead of this machine's."""
        return (self.database - self.here).total_seconds()


@asynccontextmanager
async def looking(database: Database) -> AsyncGenerator[Session]:
    """Opens a session in which PostgreSQL itself rejects all writes."""
    async with database.reading() as session:
        await session.connection(execution_options={"postgresql_readonly": True})
        yield session


async def condition(session: Session) -> Condition:
    version = await session.scalar(text("SHOW server_version"))
    connection = await session.connection()
    revision, supported = await connection.run_sync(
        lambda sync: (schema.current(sync), schema.support(sync))
    )
    known, newest = schema.revisions(), schema.head()
    state, compatible_from, problem = Schema.COMPATIBLE, "", ""
    if revision == newest:
        state = Schema.CURRENT
    elif not revision:
        state = Schema.NONE
    elif revision in known:
        state, compatible_from = Schema.OLDER, schema.compatible_from(revision)
    elif supported.oldest_revision not in known:
        state, problem = Schema.NEWER, schema.too_new(revision, supported)
    return Condition(
        version=str(version),
        schema=state,
        revision=revision,
        wanted=newest,
        compatible_from=compatible_from,
        problem=problem,
    )


async def clocks(session: Session) -> Clocks:
    """Returns this machine's clock at the middle of a round trip, with the database's clock."""
    return min(
        [await _read(session) for _ in range(_READINGS)], key=lambda reading: reading.round_trip_s
    )


async def _read(session: Session) -> Clocks:
    asked_at, begun = db.now(), time.perf_counter()
    database_time = (await session.execute(select(func.clock_timestamp()))).scalar_one()
    took_s = time.perf_counter() - begun
    return Clocks(
        database=database_time, here=asked_at + timedelta(seconds=took_s / 2), round_trip_s=took_s
    )
