"""Whether a PostgreSQL is fit for this release: found by looking, and nothing is written."""

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
"""Of the clock: the one that took least is the closest."""


class Schema(StrEnum):
    """A database's, as this release sees it."""

    NONE = "none"
    """There are no tables."""
    OLDER = "older"
    CURRENT = "current"
    NEWER = "newer"
    """Or of something else: this release does not know it."""


@dataclass(frozen=True, kw_only=True)
class Condition:
    version: str
    """Of PostgreSQL."""
    schema: Schema
    revision: str
    """Of the schema that is there; nothing: there is none."""
    wanted: str
    """The revision that this release works with."""


@dataclass(frozen=True, kw_only=True)
class Clocks:
    """Two of them at one moment, in UTC."""

    database: datetime
    here: datetime
    round_trip_s: float
    """What asking took: neither is known better than to half of it."""

    @property
    def ahead_s(self) -> float:
        """How far the database's is ahead of this machine's."""
        return (self.database - self.here).total_seconds()


@asynccontextmanager
async def looking(database: Database) -> AsyncGenerator[Session]:
    """A session in which PostgreSQL itself refuses all that would write."""
    async with database.reading() as session:
        await session.connection(execution_options={"postgresql_readonly": True})
        yield session


async def condition(session: Session) -> Condition:
    scripts = ScriptDirectory(str(_MIGRATIONS))
    wanted = scripts.get_current_head() or ""
    version = await session.scalar(text("SHOW server_version"))
    revision = ""
    if await session.scalar(text("SELECT to_regclass('alembic_version')::text")):
        revision = await session.scalar(text("SELECT version_num FROM alembic_version")) or ""
    schema = Schema.NEWER
    if revision == wanted:
        schema = Schema.CURRENT
    elif not revision:
        schema = Schema.NONE
    elif revision in {one.revision for one in scripts.walk_revisions()}:
        schema = Schema.OLDER
    return Condition(version=str(version), schema=schema, revision=revision, wanted=wanted)


async def clocks(session: Session) -> Clocks:
    """This machine's clock at the middle of a round trip, and what the database's was by then."""
    return min([await _read(session) for _ in range(_READINGS)], key=lambda one: one.round_trip_s)


async def _read(session: Session) -> Clocks:
    asked, begun = db.now(), time.perf_counter()
    told = (await session.execute(select(func.clock_timestamp()))).scalar_one()
    took_s = time.perf_counter() - begun
    return Clocks(database=told, here=asked + timedelta(seconds=took_s / 2), round_trip_s=took_s)
