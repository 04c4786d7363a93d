"""All connections of a server: their limits, which ones give way, and a check of each every
second.
"""

import asyncio
import ipaddress
import logging
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from stoker.server.edge.limits import EdgeLimits

log = logging.getLogger(__name__)

SWEEP_S = 1.0
_LINGERING = 256
"""Maximum number of rejected connections that stay open so that the peer can read the reason.
Further ones are closed.
"""


class RefusalReason(StrEnum):
    """Reasons for rejecting a connection."""

    SERVER = "server"
    ADDRESS = "address"


class Ended(StrEnum):
    """Reasons for which the server ends a connection, except the end of a response."""

    INVALID = "invalid"
    TOO_LARGE = "too_large"
    HEAD_TIMEOUT = "head_timeout"
    BODY_TIMEOUT = "body_timeout"
    ANSWER_TIMEOUT = "answer_timeout"
    IDLE = "idle"
    GAVE_WAY = "gave_way"


class LimitedConnection(Protocol):
    """Interface of a connection for `Connections`."""

    def check(self, now: float) -> None:
        """Ends the connection if it has exceeded its time limit."""
        ...

    def give_way(self) -> None:
        """Ends the connection, which has no request, to make room for another one."""
        ...


@dataclass(eq=False)
class _Address:
    open: int = 0
    waiting: dict[LimitedConnection, None] = field(default_factory=dict["LimitedConnection", None])


class Connections:
    def __init__(self, limits: EdgeLimits) -> None:
        self.limits = limits
        self.ended: Counter[Ended] = Counter()
        self.is_draining = False
        """True if the server stops soon. Each connection ends with its next answer."""
        self._refused: Counter[RefusalReason] = Counter()
        self._told = 0
        self._open: dict[LimitedConnection, _Address] = {}
        self._lingering: dict[LimitedConnection, None] = {}
        self._waiting: dict[LimitedConnection, None] = {}
        """Connections without a request in progress, longest waiting first."""
        self._addresses: dict[str, _Address] = {}
        self._names: dict[_Address, str] = {}
        self._sweeping: asyncio.TimerHandle | None = None
        self._due = 0.0
        self._is_behind = False

    def admit(self, member: LimitedConnection, host: str | None) -> RefusalReason | None:
        """Admits a connection, or returns the reason for rejecting it. A connection without a
        request may be ended to make room.
        """
        refused = self._make_room(name := _name(host))
        if self._sweeping is None:
            self._schedule()
        if refused is None:
            address = self._addresses.get(name)
            if address is None:
                address = self._addresses[name] = _Address()
                self._names[address] = name
            address.open += 1
            self._open[member] = address
            self.wait(member)
        else:
            self._refused[refused] += 1
        return refused

    def has_room(self, host: str | None) -> bool:
        """Returns True if a connection would be admitted without ending another one."""
        address, most = self._addresses.get(_name(host)), self.limits.per_address
        is_full = bool(most and address and address.open >= most)
        return not is_full and len(self._open) < self.limits.connections

    def linger(self, member: LimitedConnection) -> bool:
        """Returns True if a rejected connection may stay open for a moment, so that the peer can
        read the reason.
        """
        if len(self._lingering) >= _LINGERING:
            return False
        self._lingering[member] = None
        return True

    def wait(self, member: LimitedConnection) -> None:
        """Marks a connection as having no request in progress."""
        if (address := self._open.get(member)) is not None:
            self._waiting[member] = address.waiting[member] = None

    def work(self, member: LimitedConnection) -> None:
        """Marks a connection as having a request in progress."""
        if (address := self._open.get(member)) is not None:
            self._waiting.pop(member, None)
            address.waiting.pop(member, None)

    def forget(self, member: LimitedConnection) -> None:
        self._lingering.pop(member, None)
        address = self._open.pop(member, None)
        if address is None:
            return
        self._waiting.pop(member, None)
        address.waiting.pop(member, None)
        address.open -= 1
        if not address.open:
            del self._addresses[self._names.pop(address)]

    async def collect(self) -> Iterable[Metric]:
        """Returns the metrics of the connections."""
        connections = GaugeMetricFamily("stoker_connections_open", "Connections that are open.")
        connections.add_metric([], len(self._open))
        refused = CounterMetricFamily(
            "stoker_connections_refused",
            "Connections refused beyond the limit of the `server` or of an `address`.",
            labels=["reason"],
        )
        ended = CounterMetricFamily(
            "stoker_connections_ended",
            f"Connections that the server closed, by reason: {', '.join(Ended)}.",
            labels=["reason"],
        )
        for limit in RefusalReason:
            refused.add_metric([limit], self._refused[limit])
        for reason in Ended:
            ended.add_metric([reason], self.ended[reason])
        return [connections, refused, ended]

    def _make_room(self, name: str) -> RefusalReason | None:
        address, most = self._addresses.get(name), self.limits.per_address
        if most and address and address.open >= most and not self._end_oldest(address.waiting):
            return RefusalReason.ADDRESS
        if len(self._open) >= self.limits.connections and not self._end_oldest(self._waiting):
            return RefusalReason.SERVER
        return None

    def _end_oldest(self, waiting: dict[LimitedConnection, None]) -> bool:
        oldest = next(iter(waiting), None)
        if oldest is None:
            return False
        self.forget(oldest)
        self.ended[Ended.GAVE_WAY] += 1
        oldest.give_way()
        return True

    def sweep(self, now: float) -> None:
        """Checks every connection. All share one timer, because a timer per request would cost
        more.
        """
        if now - self._due > SWEEP_S and not self._is_behind:
            # The server itself was delayed. It first reads the data that has arrived meanwhile.
            self._is_behind = True
            return
        self._is_behind = False
        for member in (*self._open, *self._lingering):
            member.check(now)
        self._tell()

    def _tell(self) -> None:
        refused = self._refused.total()
        if refused > self._told:
            log.warning(
                "connections refused",
                extra={"refused": refused - self._told, "open": len(self._open)},
            )
            self._told = refused

    def _schedule(self) -> None:
        loop = asyncio.get_running_loop()
        self._due = loop.time() + SWEEP_S
        self._sweeping = loop.call_later(SWEEP_S, self._swept)

    def _swept(self) -> None:
        self._sweeping = None
        self.sweep(asyncio.get_running_loop().time())
        if self._open or self._lingering:
            self._schedule()


def _name(host: str | None) -> str:
    """Returns the name under which connections are counted. For IPv6 this is the network, because
    one machine owns all of its addresses.
    """
    if host is None or ":" not in host:
        return host or ""
    try:
        address = ipaddress.IPv6Address(host)
    except ValueError:
        return host
    if address.ipv4_mapped:
        return str(address.ipv4_mapped)
    return f"{int(address) >> 64:x}::/64"
