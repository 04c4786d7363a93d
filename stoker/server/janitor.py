"""Periodic maintenance: deletes expired data and records the last use of keys."""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Coroutine
from datetime import datetime
from typing import Any

from stoker.platform.parts import ServerParts
from stoker.platform.resource import Resources, Upkeep
from stoker.platform.web import idempotency
from stoker.platform.web.context import Platform
from stoker.store import db
from stoker.store.blobs import StoreUnavailableError

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
        parts: ServerParts,
        *,
        clock: Callable[[], float] = time.monotonic,
        is_first: Callable[[], bool] = lambda: True,
    ) -> None:
        """
        Args:
            is_first: returns True if this server does the work that only one server must do.
        """
        self._parts = parts
        self._platform = parts.get(Platform)
        self._upkeep = {resource.name: resource.upkeep for resource in parts.get(Resources)}
        self._clock = clock
        self._is_first = is_first
        self._strays_at = -math.inf
        self._errors: list[Exception] = []
        """Errors of the current round."""

    async def run(self) -> None:
        while True:
            try:
                await self.sweep(db.now())
            except Exception:
                log.exception("maintenance failed; retrying")
            await asyncio.sleep(PERIOD_S)

    async def sweep(self, now: datetime) -> None:
        """Runs one round of maintenance as of `now`. A step that fails does not prevent the next
        ones.

        Raises an `ExceptionGroup` of the steps' errors.
        """
        self._errors = []
        await self._step("database", self._platform.database.scrub_again())
        for name, upkeep in self._upkeep.items():
            await self._step(name, upkeep.each_server(self._parts, now))
        is_hourly = self._clock() >= self._strays_at
        if is_hourly:
            self._strays_at = self._clock() + STRAYS_EVERY_S
            await self._step("runtime", self._platform.runtime.sweep_strays())
        if self._is_first():
            await self._sweep_shared(now)
            if is_hourly:
                await self._sweep_hourly(now)
        if self._errors:
            raise ExceptionGroup("maintenance", self._errors)

    async def _sweep_shared(self, now: datetime) -> None:
        """Maintains data that all servers share."""
        old = now - idempotency.KEPT
        await self._step("idempotency", idempotency.forget_old(self._platform.database, old))
        for name, upkeep in self._upkeep.items():
            await self._step(name, upkeep.shared(self._parts, now))

    async def _sweep_hourly(self, now: datetime) -> None:
        for name, upkeep in self._upkeep.items():
            await self._step(name, self._sweep_strays(upkeep, now))
        for name, upkeep in self._upkeep.items():
            await self._step(name, upkeep.shared_hourly(self._parts, now))

    async def _sweep_strays(self, upkeep: Upkeep, now: datetime) -> None:
        try:
            await upkeep.strays(self._parts, now)
        except StoreUnavailableError as error:
            log.warning("object store is swept later: %s", error)
            self._strays_at = self._clock() + STRAYS_AGAIN_S

    async def _step(self, name: str, step: Coroutine[Any, Any, None]) -> None:
        """Runs a step, and keeps its error for the end of the round."""
        try:
            await step
        except Exception as error:
            error.add_note(f"in the maintenance of {name}")
            self._errors.append(error)
