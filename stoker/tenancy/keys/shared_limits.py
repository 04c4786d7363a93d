"""Rate limits of keys for several servers with one PostgreSQL.

The database stores the remaining units of a key. A server draws a share of them that it may spend
on its own. Each second it returns the unused units and draws again. Other servers can use the units
that one server does not need, and together they never spend more than exists. Tokens are counted at
the end of calls. Usage beyond the share is returned as a debt that all servers see.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Iterator, Mapping

from stoker.platform.web.principal import Principal
from stoker.runtime.listening import Served
from stoker.store.db import Database, Session
from stoker.store.waiting import repeated
from stoker.tenancy.keys import repository
from stoker.tenancy.keys.limits import MINUTE_S, LimitVerdict, RateLimits, TokenBucket, span

BALANCE_S = 1.0
_ASK_AGAIN_S = 0.1
"""Seconds between requests for more units if the database has none left."""
_AT_ONCE = 200
_ONE = 1 - 1e-6
"""Cost of a request, with a tolerance for rounding."""
_RESTED_S = 3600.0
"""Seconds after which an untouched level is full."""


class SharedBucket(TokenBucket):
    """Units of a key's limit that this server has drawn, and the last known rest in the
    database.
    """

    __slots__ = ("asked", "is_used", "key_id", "left", "what")

    def __init__(self, key_id: str, what: str, per_minute: int, now: float) -> None:
        super().__init__(what, per_minute, now)
        self.key_id = key_id
        self.what = what
        self._level = 0.0
        self.left = 0.0
        """Units left in the database at the last exchange."""
        self.asked = -_RESTED_S
        self.is_used = True
        """True if the share was used since the last exchange."""

    @property
    def name(self) -> tuple[str, str]:
        return self.key_id, self.what

    def level(self, now: float) -> float:
        return self._level

    def take(self, amount: int, now: float) -> None:
        self._level -= amount
        self.is_used = True

    def give_back(self, given: float, drawn: float, left: float, now: float) -> None:
        """Applies an exchange: the database received `given` units and returned `drawn`. Calls may
        have continued in the meantime.
        """
        self._level += drawn - given
        self.left, self.asked = left, now

    def whole(self, now: float) -> float:
        """Returns the units left in this server and in the database, without the shares of other
        servers.
        """
        gained = max(0.0, now - self.asked) * self.per_minute / MINUTE_S
        return min(float(self.per_minute), self.left + gained) + self._level

    def is_wanting(self, now: float) -> bool:
        """Returns True if the share is too small for a request and the database may have more."""
        if self._level >= _ONE:
            return False
        return self.whole(now) >= _ONE or now - self.asked >= _ASK_AGAIN_S

    def reaches(self, level: float, now: float) -> float:
        if self._level >= level * _ONE:
            return 0.0
        return max(_ASK_AGAIN_S, (level - self.whole(now)) * MINUTE_S / self.per_minute)

    def headers(self, now: float) -> dict[str, str]:
        limit, remaining, reset = self._names
        whole = self.whole(now)
        full_in_s = max(0.0, (self.per_minute - whole) * MINUTE_S / self.per_minute)
        return {
            limit: str(self.per_minute),
            remaining: str(max(0, int(whole))),
            reset: span(full_in_s),
        }


class SharedLimits(RateLimits):
    def __init__(
        self,
        database: Database,
        servers: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] | None = None,
    ) -> None:
        """
        Args:
            servers: returns the current number of servers.
            wall: returns seconds since 1970. None uses the database's clock, which all servers
                share.
        """
        super().__init__(clock)
        self._database = database
        self._servers = servers
        self._wall = wall
        self._asking: dict[str, asyncio.Lock] = {}
        self._debts: dict[tuple[str, str], SharedBucket] = {}
        """Shares of keys that were already forgotten when one of their calls ended."""

    async def ready(self, caller: Principal) -> None:
        now = self._clock()
        if not caller.limits or not self._wants(caller, now):
            return
        lock = self._asking.setdefault(caller.key_id, asyncio.Lock())
        try:
            async with lock:
                # The previous holder of the lock has fetched for all waiting requests.
                if self._wants(caller, now):
                    shares = self._shares(caller, now)
                    await self._balance(shares.values(), is_asked=True)
                    self._keys[caller.key_id] = {**shares}
        finally:
            if not lock.locked():
                self._asking.pop(caller.key_id, None)

    def _wants(self, caller: Principal, now: float) -> bool:
        known = self._known(caller.key_id)
        return not known or any(share.is_wanting(now) for share in known.values())

    def _known(self, key_id: str) -> dict[str, SharedBucket]:
        buckets = self._keys.get(key_id, {})
        return {
            name: bucket for name, bucket in buckets.items() if isinstance(bucket, SharedBucket)
        }

    def _shares(self, caller: Principal, now: float) -> dict[str, SharedBucket]:
        return self._known(caller.key_id) or {
            name: SharedBucket(caller.key_id, name, limit, now)
            for name, limit in caller.limits.items()
        }

    def check(self, caller: Principal) -> LimitVerdict:
        verdict = super().check(caller)
        for share in self._known(caller.key_id).values():
            # A refused request needs a share too.
            share.is_used = True
        return verdict

    def served(self, call: Served) -> None:
        super().served(call)
        share = self._of_request.get()
        if (
            isinstance(share, SharedBucket)
            and self._known(share.key_id).get(share.what) is not share
        ):
            self._debts[share.name] = share

    async def run(self) -> None:
        """Returns and draws shares every second until cancelled."""
        await repeated(self.balance, BALANCE_S, "balancing the limits of keys")

    async def balance(self) -> None:
        """Exchanges all shares once, and forgets unused keys. Each server runs it every second."""
        shares = [*self._held()]
        for at in range(0, len(shares), _AT_ONCE):
            await self._balance(shares[at : at + _AT_ONCE])
        for key_id in [*self._keys]:
            known = self._known(key_id)
            if not any(share.is_used or share.level(0) for share in known.values()):
                del self._keys[key_id]

    def _held(self) -> Iterator[SharedBucket]:
        debts, self._debts = self._debts, {}
        yield from debts.values()
        for key_id in [*self._keys]:
            yield from self._known(key_id).values()

    async def _balance(self, shares: Collection[SharedBucket], *, is_asked: bool = False) -> None:
        returned = {share: share.level(0) for share in shares}
        used = {share for share in shares if share.is_used or is_asked}
        least = _ONE if is_asked else float(self._servers())
        for share in shares:
            share.is_used = False
        try:
            drawn = await self._exchange(returned, used, least)
        except BaseException:
            for share in used:
                share.is_used = True
            raise
        now = self._clock()
        for share, (amount, remaining) in drawn.items():
            share.give_back(returned[share], amount, remaining, now)

    async def _exchange(
        self, given: Mapping[SharedBucket, float], used: Collection[SharedBucket], least: float
    ) -> dict[SharedBucket, tuple[float, float]]:
        """Returns units to the database and draws new ones. Maps each share to the drawn units and
        the rest in the database.

        Args:
            least: minimum level to draw from. If the rest is less than a request per server, only
                servers with a waiting request may draw. Otherwise the first server would always get
                it.
        """
        drawn: dict[SharedBucket, tuple[float, float]] = {}
        async with self._database.transaction() as session:
            now = await self._now(session)
            full = {share.name: float(share.per_minute) for share in given}
            rows = await repository.locked_levels(session, full, now)
            for share, back in given.items():
                row = rows[share.name]
                gained = max(0.0, now - row.counted_at) * share.per_minute / MINUTE_S
                level = min(float(share.per_minute), row.level + gained + back)
                amount = self._part(level) if share in used and level >= least else 0.0
                row.level, row.counted_at = level - amount, max(now, row.counted_at)
                drawn[share] = amount, row.level
        return drawn

    def _part(self, level: float) -> float:
        """Returns this server's part of the level: at least one request if available."""
        return max(level / self._servers(), min(level, 1.0))

    async def _now(self, session: Session) -> float:
        if self._wall:
            return self._wall()
        return await repository.clock_s(session)


async def forget_rested(database: Database) -> None:
    """Deletes levels that were not touched for long, because they are full. Called by the
    janitor.
    """
    if database.is_sqlite:
        return
    async with database.transaction() as session:
        await repository.delete_rested_levels(session, _RESTED_S)
