"""Servers of one PostgreSQL. Each sends a heartbeat every second.

A server without a heartbeat for `GONE_AFTER_S` is lost, and any other server may take over its
work. SQLite has exactly one server and needs no heartbeat.
"""

import logging
import math
import platform
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import BindParameter, Select, bindparam, delete, func, select, true, union_all
from sqlalchemy.dialects.postgresql import insert

import stoker
from stoker.store import schema
from stoker.store.db import Database, Session
from stoker.store.tables.servers import Server
from stoker.store.waiting import repeated

log = logging.getLogger(__name__)

BEAT_S = 1.0
GONE_AFTER_S = schema.GONE_AFTER_S
"""Timeout in seconds, the same for all servers. A slow server must know when others consider it
lost.
"""
_RELEASE = ("host", "version", "python", "schema_revision")
_NOW = func.clock_timestamp()
"""Time by the database's clock, because the clocks of several machines differ."""


@dataclass(frozen=True)
class Release:
    """Release that an active server runs, for diagnosing differences between servers."""

    server_id: str
    host: str
    version: str
    """Version of Stoker. Empty for a server of a release that did not record it."""
    python: str


class Servers:
    """View of one server on all servers.

    A server that was disconnected or has just started declares no other lost: after a database
    outage the first to return finds all others silent.
    """

    def __init__(
        self,
        database: Database,
        clock: Callable[[], float] = time.monotonic,
        loaded: Callable[[], list[str]] = list,
    ) -> None:
        """
        Args:
            database: a separate connection, for which no other work waits.
            loaded: returns the ids of this server's loaded versions, for the other servers.
        """
        self.id = database.server_id
        self._database = database
        self._clock = clock
        self._loaded = loaded
        self._last_beat = -math.inf
        self._beating_since = math.inf
        self._alive: list[str] = [self.id]
        self.gone = 0
        """Number of servers found lost since the start."""
        self._release = _own_release()

    @property
    def count(self) -> int:
        """Number of active servers, including this one."""
        return max(1, len(self._alive))

    @property
    def is_first(self) -> bool:
        """True if this server does the work that only one server must do. Two servers may be first
        for a moment, so no work may rely on exclusivity.
        """
        return not self._alive or self._alive[0] == self.id

    async def open(self) -> None:
        """Registers this server. Must be called before any work."""
        if not self._database.is_sqlite:
            await self.beat()

    async def run(self, on_gone: Callable[[], Awaitable[None]]) -> None:
        """Sends heartbeats until cancelled. Awaits `on_gone` when other servers are lost, and again
        while it fails.
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
        """Sends a heartbeat. Returns the ids of servers that this call found lost."""
        now = self._clock()
        if now - self._last_beat > GONE_AFTER_S / 3:
            self._beating_since = now
        own = {"own_id": self.id, "own_loaded": self._loaded(), **self._release}
        servers = await self._database.poll(_HEARTBEAT, own)
        self._last_beat = now
        self._alive = [server.id for server in servers if server.is_heard]
        if len(self._alive) == len(servers) or not self._judges(now):
            return []
        lost = await self._forget_gone()
        self._alive = [server_id for server_id in self._alive if server_id not in lost]
        self.gone += len(lost)
        for server_id in lost:
            log.warning("peer server is gone: its jobs are taken over", extra={"server": server_id})
        return lost

    def _judges(self, now: float) -> bool:
        return now - self._beating_since >= GONE_AFTER_S

    async def _forget_gone(self) -> list[str]:
        # A server that returns at this moment holds its row and is not lost.
        silent = select(Server.id).where(~_is_heard).with_for_update(skip_locked=True)
        statement = delete(Server).where(Server.id.in_(silent)).returning(Server.id)
        async with self._database.transaction() as session:
            return [*await session.scalars(statement)]

    async def close(self) -> None:
        """Deregisters this server. Must be called after all work has ended."""
        try:
            if not self._database.is_sqlite:
                async with self._database.transaction() as session:
                    await session.execute(delete(Server).where(Server.id == self.id))
        finally:
            await self._database.close()


_is_heard = Server.seen_at > _NOW - timedelta(seconds=GONE_AFTER_S)
_ORDER = (Server.started_at, Server.id)
"""Order of servers, the longest active first."""


def _heartbeat() -> Select[str, bool]:
    """Returns the statement that writes this server's heartbeat. Its rows are all servers, in
    order, each with True if its heartbeat is recent.
    """
    own_id: BindParameter[str] = bindparam("own_id")
    row = insert(Server).values(
        id=own_id,
        started_at=_NOW,
        seen_at=_NOW,
        loaded=bindparam("own_loaded", type_=Server.loaded.type),
        **{name: bindparam(f"own_{name}") for name in _RELEASE},
    )
    beat = {"seen_at": _NOW, "loaded": row.excluded.loaded}
    written = (
        row.on_conflict_do_update(index_elements=[Server.id], set_=beat)
        .returning(Server.id, Server.started_at)
        .cte("written")
    )
    # The statement's snapshot is older than its own write, so the own row is read from that.
    own = select(written.c.id, true().label("is_heard"), written.c.started_at)
    others = select(Server.id, _is_heard.label("is_heard"), Server.started_at)
    servers = union_all(own, others.where(Server.id != own_id)).subquery()
    return select(servers.c.id, servers.c.is_heard).order_by(servers.c.started_at, servers.c.id)


_HEARTBEAT = _heartbeat()


async def releases(session: Session) -> list[Release]:
    """Returns the releases of all active servers, in the same order."""
    columns = select(Server.id, Server.host, Server.version, Server.python)
    rows = await session.execute(columns.where(_is_heard).order_by(*_ORDER))
    return [Release(*row) for row in rows]


def _own_release() -> dict[str, str]:
    return {
        "own_host": platform.node()[:63],
        "own_version": stoker.__version__,
        "own_python": platform.python_version(),
        "own_schema_revision": schema.head(),
    }


async def loaded_elsewhere(session: Session, server_id: str, identifier: str) -> bool:
    """Returns True if another server has the version loaded, or did a second ago."""
    statement = select(Server.loaded).where(_is_heard, Server.id != server_id)
    return any(identifier in loaded for loaded in await session.scalars(statement))


async def others_alive(session: Session, server_id: str) -> bool:
    """Returns True if another server is active."""
    statement = select(Server.id).where(_is_heard, Server.id != server_id).limit(1)
    return await session.scalar(statement) is not None
