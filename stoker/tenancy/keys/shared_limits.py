"""Limits of keys where several servers have one PostgreSQL.

What is left of a key's minute stands in the database. A server takes some of it to give out by
itself, gives back each second what it has not used, and takes anew: what one does not need, others
get, and together they never give out more than there is. Tokens are paid for at the end of calls:
what they went beyond is given back as a debt, of which all others hear.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Iterator, Mapping

from sqlalchemy import delete, func, select, tuple_
from sqlalchemy.dialects.postgresql import insert

from stoker.platform.web.principal import Principal
from stoker.runtime.listening import Served
from stoker.store.db import Database, Session
from stoker.store.tables.servers import RateLevel
from stoker.store.waiting import repeated
from stoker.tenancy.keys.limits import MINUTE_S, Bucket, RateLimits, Verdict, span

BALANCE_S = 1.0
_ASK_AGAIN_S = 0.1
"""For more of what the database had none left of."""
_AT_ONCE = 200
_ONE = 1 - 1e-6
"""A request, but for the last bits of a number."""
_RESTED_S = 3600.0
"""A level that nobody has touched for so long is full."""


class Share(Bucket):
    """What a server has taken of a key's minute to give out, and knows of the rest."""

    __slots__ = ("asked", "is_used", "key_id", "left", "what")

    def __init__(self, key_id: str, what: str, per_minute: int, now: float) -> None:
        super().__init__(what, per_minute, now)
        self.key_id = key_id
        self.what = what
        self._level = 0.0
        self.left = 0.0
        """In the database, when it was asked."""
        self.asked = -_RESTED_S
        self.is_used = True
        """Since then."""

    @property
    def name(self) -> tuple[str, str]:
        return self.key_id, self.what

    def level(self, now: float) -> float:
        return self._level

    def take(self, amount: int, now: float) -> None:
        self._level -= amount
        self.is_used = True

    def give_back(self, given: float, drawn: float, left: float, now: float) -> None:
        """The database has taken one and given another; calls have gone on meanwhile."""
        self._level += drawn - given
        self.left, self.asked = left, now

    def whole(self, now: float) -> float:
        """What is left of the minute, here and there; what other servers hold is not in it."""
        gained = max(0.0, now - self.asked) * self.per_minute / MINUTE_S
        return min(float(self.per_minute), self.left + gained) + self._level

    def is_wanting(self, now: float) -> bool:
        """Whether it has too little for a request, and the database may have some."""
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
            servers: how many there are now.
            wall: seconds since 1970; None: by the database's clock, which is one for all servers.
        """
        super().__init__(clock)
        self._database = database
        self._servers = servers
        self._wall = wall
        self._asking: dict[str, asyncio.Lock] = {}
        self._debts: dict[tuple[str, str], Share] = {}
        """Of keys that rested when a call of theirs ended."""

    async def ready(self, caller: Principal) -> None:
        now = self._clock()
        if not caller.limits or not self._wants(caller, now):
            return
        lock = self._asking.setdefault(caller.key_id, asyncio.Lock())
        try:
            async with lock:
                # Whoever was before has asked for all.
                if self._wants(caller, now):
                    shares = self._shares(caller, now)
                    await self._balance(shares.values(), is_asked=True)
                    self._keys[caller.key_id] = {**shares}
        finally:
            if not lock.locked():
                self._asking.pop(caller.key_id, None)

    def _wants(self, caller: Principal, now: float) -> bool:
        known = self._known(caller.key_id)
        return not known or any(one.is_wanting(now) for one in known.values())

    def _known(self, key_id: str) -> dict[str, Share]:
        found = self._keys.get(key_id, {})
        return {what: one for what, one in found.items() if isinstance(one, Share)}

    def _shares(self, caller: Principal, now: float) -> dict[str, Share]:
        return self._known(caller.key_id) or {
            what: Share(caller.key_id, what, limit, now) for what, limit in caller.limits.items()
        }

    def check(self, caller: Principal) -> Verdict:
        verdict = super().check(caller)
        for one in self._known(caller.key_id).values():
            # Whoever was refused wants a part, too.
            one.is_used = True
        return verdict

    def served(self, call: Served) -> None:
        super().served(call)
        share = self._of_request.get()
        if isinstance(share, Share) and self._known(share.key_id).get(share.what) is not share:
            self._debts[share.name] = share

    async def run(self) -> None:
        """Give back and take anew, until cancelled."""
        await repeated(self.balance, BALANCE_S, "balancing the limits of keys")

    async def balance(self) -> None:
        """What each server does every second."""
        shares = [*self._held()]
        for at in range(0, len(shares), _AT_ONCE):
            await self._balance(shares[at : at + _AT_ONCE])
        for key_id in [*self._keys]:
            known = self._known(key_id)
            if not any(one.is_used or one.level(0) for one in known.values()):
                del self._keys[key_id]

    def _held(self) -> Iterator[Share]:
        debts, self._debts = self._debts, {}
        yield from debts.values()
        for key_id in [*self._keys]:
            yield from self._known(key_id).values()

    async def _balance(self, shares: Collection[Share], *, is_asked: bool = False) -> None:
        given = {one: one.level(0) for one in shares}
        used = {one for one in shares if one.is_used or is_asked}
        least = _ONE if is_asked else float(self._servers())
        for one in shares:
            one.is_used = False
        try:
            drawn = await self._exchange(given, used, least)
        except BaseException:
            for one in used:
                one.is_used = True
            raise
        now = self._clock()
        for one, (amount, left) in drawn.items():
            one.give_back(given[one], amount, left, now)

    async def _exchange(
        self, given: Mapping[Share, float], used: Collection[Share], least: float
    ) -> dict[Share, tuple[float, float]]:
        """Give back these; what is taken for each anew, and what is left then.

        least: of less nothing is taken. Where there is no request for each server, those get it
        that are asked for one, or the first would have it every time.
        """
        drawn: dict[Share, tuple[float, float]] = {}
        async with self._database.transaction() as session:
            now = await self._now(session)
            rows = await self._rows(session, [*given], now)
            for one, back in given.items():
                row = rows[one.name]
                gained = max(0.0, now - row.counted_at) * one.per_minute / MINUTE_S
                level = min(float(one.per_minute), row.level + gained + back)
                amount = self._part(level) if one in used and level >= least else 0.0
                row.level, row.counted_at = level - amount, max(now, row.counted_at)
                drawn[one] = amount, row.level
        return drawn

    def _part(self, level: float) -> float:
        """Of what is there, for this server: a request at the least."""
        return max(level / self._servers(), min(level, 1.0))

    async def _now(self, session: Session) -> float:
        if self._wall:
            return self._wall()
        seconds = func.extract("epoch", func.clock_timestamp())
        return float(await session.scalar(select(seconds)) or 0.0)

    @staticmethod
    async def _rows(
        session: Session, shares: Collection[Share], now: float
    ) -> dict[tuple[str, str], RateLevel]:
        """The levels, locked in one order; a new one is full."""
        names = sorted({one.name for one in shares})
        full = {one.name: float(one.per_minute) for one in shares}
        begun = [
            {"key_id": name[0], "what": name[1], "level": full[name], "counted_at": now}
            for name in names
        ]
        await session.execute(insert(RateLevel).values(begun).on_conflict_do_nothing())
        statement = (
            select(RateLevel)
            .where(tuple_(RateLevel.key_id, RateLevel.what).in_(names))
            .order_by(RateLevel.key_id, RateLevel.what)
            .with_for_update()
        )
        return {(row.key_id, row.what): row for row in await session.scalars(statement)}


async def forget_rested(database: Database) -> None:
    """Drop the levels that nobody has touched for long: they are full. Called by the janitor."""
    if database.is_sqlite:
        return
    async with database.transaction() as session:
        now = func.extract("epoch", func.clock_timestamp())
        await session.execute(delete(RateLevel).where(RateLevel.counted_at < now - _RESTED_S))
