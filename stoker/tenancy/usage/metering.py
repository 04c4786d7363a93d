"""Metering loop. Each tick stores and charges what was held and counted."""

import asyncio
import logging
import time
from collections.abc import Callable

from stoker.runtime.metering import Meter
from stoker.store import db
from stoker.store.db import Database
from stoker.tenancy.usage import accrual, balances, repository
from stoker.tenancy.usage.balances import CreditCheck
from stoker.tenancy.usage.counts import Counts
from stoker.tenancy.usage.ledger import Ledger
from stoker.tenancy.usage.prices import PriceList

log = logging.getLogger(__name__)

TICK_S = 10.0
"""Seconds between ticks. A killed server loses at most the usage since its last tick."""


class Metering:
    def __init__(
        self,
        database: Database,
        meter: Meter,
        known: CreditCheck,
        counts: Counts,
        *,
        starting_credits: int,
        wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        is_first: Callable[[], bool] = lambda: True,
    ) -> None:
        """
        Args:
            is_first: returns True if this server does the work that needs only one server. If
                several servers do it, the result is still the same.
        """
        self._database = database
        self._meter = meter
        self._credits = known
        self._counts = counts
        self._starting_credits = starting_credits
        self._wall_ms = wall_ms
        self._is_first = is_first

    async def open(self) -> None:
        """Opens the books of accounts without one, and ticks. Runs before requests are served."""
        async with self._database.transaction() as session:
            await Ledger.open(session)
            for account_id in await repository.accounts_without_book(session):
                await balances.open_account(
                    session, self._credits, account_id, self._starting_credits, db.now()
                )
        await self.tick()

    async def run(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            try:
                await self.tick()
            except Exception:
                log.exception("metering failed; retrying without loss")

    async def close(self) -> None:
        """Stores the last usage after all replicas have ended."""
        try:
            await self.tick()
        except Exception:
            log.exception("last metering tick failed: the next start charges the rest")

    async def tick(self) -> None:
        """Stores all new usage and charges final usage in one transaction.

        If the outcome of the commit is unknown, the next tick reports the same usage again. A
        repeated report changes nothing.
        """
        holdings, counted = self._meter.take(), self._counts.take()
        now_ms = self._wall_ms()
        async with self._database.transaction() as session:
            ledger = await Ledger.open(session)
            prices = await PriceList.read(session)
            # An account may have been deleted in the meantime. Its usage is no longer stored.
            ids = {item.account_id for item in (*holdings, *counted)}
            known = await repository.accounts_of(session, ids)
            of_known = [item for item in holdings if item.account_id in known]
            await accrual.write_held(session, prices, of_known)
            counted_of_known = [item for item in counted if item.account_id in known]
            await accrual.write_counted(session, counted_of_known)
            if self._is_first():
                await accrual.write_stored(session, prices, now_ms)
                await accrual.end_lost(session, now_ms)
            await accrual.charge(session, ledger, prices, now_ms)
            remaining = await balances.left_of(session)
            session.after_commit(lambda: self._credits.learn(remaining))
        self._meter.acknowledge(holdings)
        self._counts.acknowledge(counted)
