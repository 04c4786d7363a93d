"""Checks read-only whether a PostgreSQL is suitable for this release."""

import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path

from alembic.script import ScriptDirectory
from sqlalchemy import func, select, text

from stoker.store import db
from stoker.store.db import Database, Session

_MIGRATIONS = Path(__file__).parent / "migrations"
_READINGS = 3
"""Number of clock readings. The fastest reading is the most accurate."""


class Schema(StrEnum):
    """State of a database's schema for this release."""

    NONE = "none"
    """The database has no tables."""
    OLDER = "older"
    CURRENT = "current"
    NEWER = "newer"
    """The schema is newer or foreign: this release does not know it."""


@dataclass(frozen=True, kw_only=True)
class Condition:
    version: str
    """Version of PostgreSQL."""
    schema: Schema
    revision: str
    """Revision of the existing schema. Empty if none exists."""
    wanted: str
    """Revision that this release works with."""


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


def revisions() -> set[str]:
    """Returns the revisions of the schema that this release knows."""
    return {script.revision for script in _scripts().walk_revisions()}


def _scripts() -> ScriptDirectory:
    return ScriptDirectory(str(_MIGRATIONS))


async def condition(session: Session) -> Condition:
    head_revision = _scripts().get_current_head() or ""
    version = await session.scalar(text("SHOW server_version"))
    revision = ""
    if await session.scalar(text("SELECT to_regclass('alembic_version')::text")):
        revision = await session.scalar(text("SELECT version_num FROM alembic_version")) or ""
    schema = Schema.NEWER
    if revision == head_revision:
        schema = Schema.CURRENT
    elif not revision:
        schema = Schema.NONE
    elif revision in revisions():
        schema = Schema.OLDER
    return Condition(version=str(version), schema=schema, revision=revision, wanted=head_revision)


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
