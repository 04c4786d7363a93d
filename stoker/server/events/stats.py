"""What is told every second: how deployments do, what memory is held, what credit is left.

Computed once for all who listen, and only while somebody does.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import orjson

from stoker.registry.deployments.directory import Directory, Entry
from stoker.runtime.interface import Runtime
from stoker.runtime.observed import MachineStats, Status
from stoker.server.events.history import History, Observed
from stoker.server.events.machine import devices, waiting
from stoker.server.events.messages import Visibility
from stoker.store.db import Database
from stoker.tenancy.usage import balances, money, reports
from stoker.tenancy.usage.grouping import Grouping
from stoker.wire import sse

CREDITS_S = 10.0
"""How often what is left is looked up: the meter's own pace."""
_TURN = 200
BY_HOUR = Grouping(("hour",))
_KEPT = 1000
"""Accounts whose balances are remembered."""


class Stats:
    """As of one moment, in pieces that belong to an account each."""

    def __init__(self, at: float, machine: MachineStats) -> None:
        self.at = at
        self.machine = machine
        self.pieces: list[tuple[str, bytes]] = []
        """Account → `"dep_…":{…}`."""

    def message(self, reach: Visibility, credit: dict[str, Any] | None) -> bytes:
        """What one reach hears of it."""
        found = b",".join(piece for account_id, piece in self.pieces if reach.has(account_id))
        memory = {
            "budget_bytes": self.machine.budget_bytes,
            "held_bytes": self.machine.held_bytes,
            "used_bytes": self.machine.used_bytes,
            "devices": [one.model_dump() for one in devices(self.machine)],
            "waiting": [one.model_dump() for one in waiting(self.machine, reach)],
        }
        head = b'{"at":%.3f,"deployments":{' % self.at
        rest = orjson.dumps({"memory": memory, "credits": credit})[1:]
        return sse.framed(head + found + b"}," + rest, "stats")


class Watch:
    """Sees what deployments do, and which of them have changed in a way that no row tells."""

    def __init__(self, history: History, directory: Directory, runtime: Runtime) -> None:
        self._history = history
        self._directory = directory
        self._runtime = runtime
        self._seen: dict[str, Any] = {}
        """Deployments that were not at rest → how they were seen last."""

    async def look(self, changed: Callable[[str], None]) -> Stats:
        """`changed` is called with the ids of deployments that show otherwise than before."""
        stats = Stats(round(time.time(), 3), self._runtime.machine())
        seen: dict[str, Any] = {}
        for number, entry in enumerate(self._directory.entries(), start=1):
            if number % _TURN == 0:
                await asyncio.sleep(0)
            identifier = entry.deployment_id
            if self._history.is_quiet(identifier) and identifier not in self._seen:
                continue
            found = self._history.observe(entry)
            stats.pieces.append((entry.account_id, self._piece(entry, found)))
            shown = _shown(found)
            if self._seen.get(identifier, shown) != shown:
                changed(identifier)
            if not self._history.is_quiet(identifier):
                seen[identifier] = shown
        self._seen = seen
        return stats

    def _piece(self, entry: Entry, found: Observed) -> bytes:
        recent = self._history.recent(entry.deployment_id)
        body = {
            "requests_per_s": round(recent.requests_per_s, 3),
            "errors_per_s": round(recent.errors_per_s, 3),
            "p50_ms": recent.p50_ms and round(recent.p50_ms, 3),
            "p99_ms": recent.p99_ms and round(recent.p99_ms, 3),
            "queue": found.queue,
            "replicas": found.replicas,
            "memory_bytes": found.memory_bytes,
        }
        return orjson.dumps({entry.deployment_id: body})[1:-1]


def _shown(found: Observed) -> tuple[Any, ...]:
    """What of a deployment's object comes from its runtime, progress by twentieths."""
    return tuple(
        (
            version_id,
            stats.status,
            stats.message,
            stats.memory_bytes,
            tuple(
                (one.id, one.status, one.engine, round(one.progress * 20))
                for one in stats.replicas
                if one.status is not Status.STOPPED
            ),
        )
        for version_id, stats in found.versions
    )


class Balances:
    """What accounts have left, looked up now and then."""

    def __init__(self, database: Database, clock: Callable[[], float] = time.monotonic) -> None:
        self._database = database
        self._clock = clock
        self._known: dict[str, tuple[float, dict[str, Any]]] = {}

    async def of(self, account_id: str) -> dict[str, Any]:
        """`balance`, in credits, and `days_left` at the pace of the last day; null: for ever."""
        now = self._clock()
        known = self._known.get(account_id)
        if known and now - known[0] < CREDITS_S:
            return known[1]
        async with self._database.reading() as session:
            left = await balances.left(session, account_id)
            asked = reports.span(account_id, None, None, BY_HOUR)
            spent = (await reports.usage(session, asked, BY_HOUR)).total.microcredits
        per_day = spent * 24 / max(1, asked.end - asked.first)
        days = max(0, left.microcredits) / per_day if per_day > 0 else None
        found = {
            "balance": money.in_credits(left.microcredits),
            "days_left": None if days is None else round(days, 2),
        }
        if len(self._known) >= _KEPT:
            self._known.clear()
        self._known[account_id] = (now, found)
        return found
