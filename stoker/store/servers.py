"""The servers that work on one PostgreSQL: each tells, every second, that it is there.

One that has not been heard of for `GONE_AFTER_S` is gone, and what it worked on is anybody's.
SQLite has one server, of which all this is true without a word.
"""

import logging
import math
import platform
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import delete, func, select
from sqlalchemy.dialects.postgresql import insert

import stoker
from stoker.store.db import Database, Session
from stoker.store.tables.servers import Server
from stoker.store.waiting import repeated

log = logging.getLogger(__name__)

BEAT_S = 1.0
GONE_AFTER_S = 15.0
"""For all servers alike: who is slow must know when others give it up."""
_NOW = func.clock_timestamp()
"""The database's clock, as those of several machines differ."""


@dataclass(frozen=True)
class Release:
    """What a server that is at work runs, for who looks for the cause of a difference."""

    server_id: str
    host: str
    version: str
    """Of Stoker; nothing, of one from before they were written down."""
    python: str


class Servers:
    """What one server knows of all.

    Whoever was away itself, or has just come, judges nobody: after an outage of the database the
    first to come back finds all others silent.
    """

    def __init__(
        self,
        database: Database,
        clock: Callable[[], float] = time.monotonic,
        loaded: Callable[[], list[str]] = list,
    ) -> None:
        """
        Args:
            database: one that nothing else waits for.
            loaded: the ids of what this server has loaded, for the others.
        """
        self.id = database.server_id
        self._database = database
        self._clock = clock
        self._loaded = loaded
        self._last_beat = -math.inf
        self._beating_since = math.inf
        self._alive: list[str] = [self.id]
        self.gone = 0
        """How many were found gone since the start."""

    @property
    def count(self) -> int:
        """How many are at work, this one included."""
        return max(1, len(self._alive))

    @property
    def is_first(self) -> bool:
        """Whether this is the one that does what is enough to be done by one. Two may think so for
        a moment: nothing may depend on it being one alone.
        """
        return not self._alive or self._alive[0] == self.id

    async def open(self) -> None:
        """Before anything is worked on."""
        if not self._database.is_sqlite:
            await self.beat()

    async def run(self, on_gone: Callable[[], Awaitable[None]]) -> None:
        """Tell that this one is there, until cancelled. `on_gone` is awaited when others have gone,
        and again while it fails.
        """
        is_due = False

        async def beat() -> None:
            nonlocal is_due
            is_due = bool(await self.beat()) or is_due
            if is_due:
                await on_gone()
                is_due = False

        await repeated(beat, BEAT_S, "telling that this server is there")

    async def beat(self) -> list[str]:
        """Tell that this one is there; the ids of those that were found gone by this one."""
        now = self._clock()
        if now - self._last_beat > GONE_AFTER_S / 3:
            self._beating_since = now
        async with self._database.transaction() as session:
            lost = await self._forget_gone(session) if self._judges(now) else []
            said = {"seen_at": _NOW, "loaded": self._loaded()}
            row = insert(Server).values(id=self.id, started_at=_NOW, **said, **_own_release())
            await session.execute(row.on_conflict_do_update(index_elements=[Server.id], set_=said))
            alive = await at_work(session)
        self._last_beat, self._alive = now, alive
        self.gone += len(lost)
        for one in lost:
            log.warning("peer server is gone: its jobs are taken over", extra={"server": one})
        return lost

    def _judges(self, now: float) -> bool:
        return now - self._beating_since >= GONE_AFTER_S

    @staticmethod
    async def _forget_gone(session: Session) -> list[str]:
        # Whoever comes back at this moment holds its row, and is not gone.
        silent = select(Server.id).where(~_is_heard).with_for_update(skip_locked=True)
        statement = delete(Server).where(Server.id.in_(silent)).returning(Server.id)
        return [*await session.scalars(statement)]

    async def close(self) -> None:
        """Nothing is worked on any more."""
        try:
            if not self._database.is_sqlite:
                async with self._database.transaction() as session:
                    await session.execute(delete(Server).where(Server.id == self.id))
        finally:
            await self._database.close()


_is_heard = Server.seen_at > _NOW - timedelta(seconds=GONE_AFTER_S)


_ORDER = (Server.started_at, Server.id)
"""The one that is there for longest first."""


async def at_work(session: Session) -> list[str]:
    """The ids of all servers that are, the one that is there for longest first."""
    return [*await session.scalars(select(Server.id).where(_is_heard).order_by(*_ORDER))]


async def releases(session: Session) -> list[Release]:
    """Of all servers that are at work, in the same order."""
    columns = select(Server.id, Server.host, Server.version, Server.python)
    rows = await session.execute(columns.where(_is_heard).order_by(*_ORDER))
    return [Release(*row) for row in rows]


def _own_release() -> dict[str, str]:
    return {
        "host": platform.node()[:63],
        "version": stoker.__version__,
        "python": platform.python_version(),
    }


async def loaded_elsewhere(session: Session, server_id: str, identifier: str) -> bool:
    """Whether another server has, or had a second ago, loaded something."""
    statement = select(Server.loaded).where(_is_heard, Server.id != server_id)
    return any(identifier in loaded for loaded in await session.scalars(statement))


async def others_alive(session: Session, server_id: str) -> bool:
    """Whether another server than this is at work."""
    statement = select(Server.id).where(_is_heard, Server.id != server_id).limit(1)
    return await session.scalar(statement) is not None
