"""Periodic maintenance: deletes expired data and records the last use of keys."""

import asyncio
import logging
import math
import time
from collections.abc import Callable
from datetime import datetime

from stoker.platform.web import idempotency
from stoker.registry.artifacts import completion, upkeep
from stoker.registry.deployments import versions
from stoker.registry.deployments.context import DeploymentContext
from stoker.registry.files import service as files
from stoker.server.console import service as console
from stoker.server.console.context import ConsoleContext
from stoker.store import db
from stoker.store.blobs import StoreUnavailableError
from stoker.tenancy.keys import shared_limits
from stoker.tenancy.keys.keyring import Keyring
from stoker.workloads.agents import run_service as runs
from stoker.workloads.agents.context import AgentContext
from stoker.workloads.videos import service as videos

log = logging.getLogger(__name__)

PERIOD_S = 30.0
STRAYS_EVERY_S = 3600.0
"""Interval in seconds between searches for stray files, which list all files. It uses the monotonic
clock, because a wall clock that is set forward and back would delay the next search.
"""


STRAYS_AGAIN_S = 300.0
"""Seconds until the next search if the object store did not answer."""


class Janitor:
    def __init__(
        self,
        platform: DeploymentContext,
        keyring: Keyring,
        agents: AgentContext,
        browsers: ConsoleContext,
        *,
        clock: Callable[[], float] = time.monotonic,
        is_first: Callable[[], bool] = lambda: True,
    ) -> None:
        """
        Args:
            is_first: returns True if this server does the work that only one server must do.
        """
        self._platform = platform
        self._keyring = keyring
        self._agents = agents
        self._browsers = browsers
        self._clock = clock
        self._is_first = is_first
        self._strays_at = -math.inf

    async def run(self) -> None:
        while True:
            try:
                await self.sweep(db.now())
            except Exception:
                log.exception("maintenance failed; retrying")
            await asyncio.sleep(PERIOD_S)

    async def sweep(self, now: datetime) -> None:
        """Runs one round of maintenance as of `now`."""
        database = self._platform.database
        await database.scrub_again()
        await self._keyring.flush_last_used()
        await completion.reopen_cut_off(database)
        await self._platform.folders.merged.drop_idle()
        is_hourly = self._clock() >= self._strays_at
        if is_hourly:
            self._strays_at = self._clock() + STRAYS_EVERY_S
            await self._platform.runtime.sweep_strays()
        if self._is_first():
            await self._sweep_shared(now, is_hourly=is_hourly)

    async def _sweep_shared(self, now: datetime, *, is_hourly: bool) -> None:
        """Maintains data that all servers share."""
        database, blobs = self._platform.database, self._platform.blobs
        if not database.is_sqlite:
            # The server that noticed a lost server may have stopped, too.
            await upkeep.reopen_lost(database)
        await idempotency.forget_old(database, now - idempotency.KEPT)
        await upkeep.expire_uploads(database, blobs, now)
        await files.sweep(database, blobs, now)
        await console.forget_expired(self._browsers, now)
        if is_hourly:
            try:
                await files.sweep_strays(database, blobs, now)
                await upkeep.sweep_strays(database, blobs)
            except StoreUnavailableError as error:
                log.warning("object store is swept later: %s", error)
                self._strays_at = self._clock() + STRAYS_AGAIN_S
            await self._keyring.forget_revoked(now)
            await shared_limits.forget_rested(database)
            await versions.forget_old(self._platform)
            await videos.forget_ended(self._platform, now)
            await runs.forget_old(self._agents, now)
