"""Statistics that are sent every second: deployments, memory and credit.

They are computed once for all listeners, and only while a listener is connected.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import orjson

from stoker.registry.deployments.directory import Directory, DirectoryEntry
from stoker.runtime.interface import Runtime
from stoker.runtime.observed import MachineStats, Status
from stoker.server.events.history import History, ObservedDeployment
from stoker.server.events.machine import devices, waiting
from stoker.server.events.messages import Visibility
from stoker.store.db import Database
from stoker.tenancy.usage import balances, money, reports
from stoker.tenancy.usage.grouping import Grouping
from stoker.wire import sse

CREDITS_S = 10.0
"""Interval in seconds between reads of a balance. It matches the meter's interval."""
_TURN = 200
BY_HOUR = Grouping(("hour",))
_KEPT = 1000
"""Maximum number of accounts with a remembered balance."""


class Stats:
    """Statistics at one moment, in pieces that each belong to one account."""

    def __init__(self, at: float, machine: MachineStats) -> None:
        self.at = at
        self.machine = machine
        self.pieces: list[tuple[str, bytes]] = []
        """Pairs of an account and its piece `"dep_…":{…}`."""

    def message(self, reach: Visibility, credit: dict[str, Any] | None) -> bytes:
        """Returns the message for listeners with this visibility."""
        visible = b",".join(piece for account_id, piece in self.pieces if reach.has(account_id))
        memory = {
            "budget_bytes": self.machine.budget_bytes,
            "held_bytes": self.machine.held_bytes,
            "used_bytes": self.machine.used_bytes,
            "devices": [item.model_dump() for item in devices(self.machine)],
            "waiting": [item.model_dump() for item in waiting(self.machine, reach)],
        }
        head = b'{"at":%.3f,"deployments":{' % self.at
        rest = orjson.dumps({"memory": memory, "credits": credit})[1:]
        return sse.framed(head + visible + b"}," + rest, "stats")


class StatsWatch:
    """Observes deployments and finds changes that no database row shows."""

    def __init__(self, history: History, directory: Directory, runtime: Runtime) -> None:
        self._history = history
        self._directory = directory
        self._runtime = runtime
        self._seen: dict[str, Any] = {}
        """Maps deployments that were not quiet to their last shown state."""

    async def look(self, changed: Callable[[str], None]) -> Stats:
        """Observes all deployments. Calls `changed` with the id of each deployment that differs
        from the last observation.
        """
        stats = Stats(round(time.time(), 3), self._runtime.machine())
        states: dict[str, Any] = {}
        for number, entry in enumerate(self._directory.entries(), start=1):
            if number % _TURN == 0:
                await asyncio.sleep(0)
            identifier = entry.deployment_id
            if self._history.is_quiet(identifier) and identifier not in self._seen:
                continue
            observed = self._history.observe(entry)
            stats.pieces.append((entry.account_id, self._piece(entry, observed)))
            shown = _shown(observed)
            if self._seen.get(identifier, shown) != shown:
                changed(identifier)
            if not self._history.is_quiet(identifier):
                states[identifier] = shown
        self._seen = states
        return stats

    def _piece(self, entry: DirectoryEntry, found: ObservedDeployment) -> bytes:
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


def _shown(found: ObservedDeployment) -> tuple[Any, ...]:
    """Returns the parts of a deployment's object that come from its runtime. Progress is rounded to
    twentieths.
    """
    return tuple(
        (
            version_id,
            stats.status,
            stats.message,
            stats.memory_bytes,
            tuple(
                (replica.id, replica.status, replica.engine, round(replica.progress * 20))
                for replica in stats.replicas
                if replica.status is not Status.STOPPED
            ),
        )
        for version_id, stats in found.versions
    )


class Balances:
    """Balances of accounts, read from the database at intervals."""

    def __init__(self, database: Database, clock: Callable[[], float] = time.monotonic) -> None:
        self._database = database
        self._clock = clock
        self._known: dict[str, tuple[float, dict[str, Any]]] = {}

    async def of(self, account_id: str) -> dict[str, Any]:
        """Returns `balance` in credits and `days_left` at the usage rate of the last day. Null
        `days_left` means no limit.
        """
        now = self._clock()
        known = self._known.get(account_id)
        if known and now - known[0] < CREDITS_S:
            return known[1]
        async with self._database.reading() as session:
            balance = await balances.left(session, account_id)
            span = reports.span(account_id, None, None, BY_HOUR)
            spent = (await reports.usage(session, span, BY_HOUR)).total.microcredits
        per_day = spent * 24 / max(1, span.end - span.first)
        days = max(0, balance.microcredits) / per_day if per_day > 0 else None
        credit = {
            "balance": money.in_credits(balance.microcredits),
            "days_left": None if days is None else round(days, 2),
        }
        if len(self._known) >= _KEPT:
            self._known.clear()
        self._known[account_id] = (now, credit)
        return credit
