"""Periodic upkeep: what has expired goes, last use of keys is written down."""

import asyncio
import logging
from datetime import UTC, datetime, timedelta

from stoker.agents import run_service as runs
from stoker.agents.context import AgentContext
from stoker.artifacts import service as artifacts
from stoker.files import service as files
from stoker.keys.keyring import Keyring
from stoker.store import db
from stoker.videos import service as videos
from stoker.web import idempotency
from stoker.web.context import Platform

log = logging.getLogger(__name__)

PERIOD_S = 30.0
STRAYS_EVERY = timedelta(hours=1)
"""Looking for them lists all files."""


class Janitor:
    def __init__(self, platform: Platform, keyring: Keyring, agents: AgentContext) -> None:
        self._platform = platform
        self._keyring = keyring
        self._agents = agents
        self._strays_at = datetime.min.replace(tzinfo=UTC)

    async def run(self) -> None:
        while True:
            try:
                await self.sweep(db.now())
            except Exception:
                log.exception("upkeep failed; it is tried again")
            await asyncio.sleep(PERIOD_S)

    async def sweep(self, now: datetime) -> None:
        """One round, as of `now`."""
        database, blobs = self._platform.database, self._platform.blobs
        await self._keyring.flush_last_used()
        await idempotency.forget_old(database, now - idempotency.KEPT)
        await artifacts.expire_uploads(database, blobs, now)
        await files.sweep(database, blobs, now)
        if now >= self._strays_at:
            self._strays_at = now + STRAYS_EVERY
            await files.sweep_strays(database, blobs, now)
            await videos.forget_ended(self._platform, now)
            await runs.forget_old(self._agents, now)
