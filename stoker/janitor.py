"""Periodic upkeep: expired uploads, old idempotency records, last use of keys."""

import asyncio
import logging
from datetime import datetime

from stoker import db, idempotency
from stoker.artifacts import service as artifacts
from stoker.context import Services

log = logging.getLogger(__name__)

PERIOD_S = 30.0


class Janitor:
    def __init__(self, services: Services) -> None:
        self._services = services

    async def run(self) -> None:
        while True:
            try:
                await self.sweep(db.now())
            except Exception:
                log.exception("upkeep failed; it is tried again")
            await asyncio.sleep(PERIOD_S)

    async def sweep(self, now: datetime) -> None:
        """One round, as of `now`."""
        services = self._services
        await services.keyring.flush_last_used()
        await idempotency.forget_old(services.database, now - idempotency.KEPT)
        await artifacts.expire_uploads(services.database, services.blobs, now)
