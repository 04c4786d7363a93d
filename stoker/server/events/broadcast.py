"""Open event streams and the task that feeds them. The task runs only while a stream is open."""

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Generator, Sequence
from typing import Any

from stoker.base.errors import RateLimitError
from stoker.base.fairness import FairShare
from stoker.platform.web.context import Platform
from stoker.registry.deployments.directory import Directory
from stoker.registry.deployments.resource import EVENT
from stoker.server.events.history import History
from stoker.server.events.messages import Subscriber, Visibility
from stoker.server.events.objects import Dirty, Shown
from stoker.server.events.stats import Balances, StatsWatch
from stoker.store.changes import Change

log = logging.getLogger(__name__)

MOST = 1024
MOST_OF_KEY = 64
"""Maximum number of open streams per key."""
OF_OPERATORS = 64
"""Number of streams reserved for operators' keys."""
GATHER_S = 0.1
"""Seconds for which changes are collected. An object that changes ten times is sent once."""
STATS_S = 1.0


class Broadcast:
    def __init__(
        self, platform: Platform, directory: Directory, history: History, shown: Shown
    ) -> None:
        self._directory = directory
        self._changes = platform.database.changes
        self._watch = StatsWatch(history, directory, platform.runtime)
        self._balances = Balances(platform.database)
        self._listeners: set[Subscriber] = set()
        self._shown = shown
        self._dirty = Dirty(shown)
        self._news = asyncio.Event()
        self._progress: dict[tuple[str, str], int] = {}
        """Last sent progress of each running object, in percent."""
        self._telling: asyncio.Task[None] | None = None
        self._is_over = False

    @contextlib.contextmanager
    def listening(
        self, reach: Visibility, account_id: str | None, key_id: str
    ) -> Generator[Subscriber]:
        """Opens a stream.

        Args:
            account_id: the key's account; None for an operator's key.

        Raises `RateLimitError` if the key or its account has too many streams.
        """
        self._check_room(account_id, key_id)
        listener = Subscriber(reach, account_id, key_id)
        listener.is_over = self._is_over
        self._listeners.add(listener)
        self._changes.listen(self._changed)
        if self._telling is None:
            self._telling = asyncio.create_task(self._tell())
        try:
            yield listener
        finally:
            self._listeners.discard(listener)
            if not self._listeners:
                self._rest()

    def end(self) -> None:
        """Ends all streams because the server stops. Clients reconnect after its next start."""
        self._is_over = True
        for listener in self._listeners:
            listener.end()

    def end_of(self, account_id: str) -> None:
        """Ends the streams that cover only this account, because it is being deleted."""
        for listener in self._listeners:
            if listener.reach.accounts == frozenset([account_id]):
                listener.end()

    def _check_room(self, account_id: str | None, key_id: str) -> None:
        of_key = sum(listener.key_id == key_id for listener in self._listeners)
        if of_key >= MOST_OF_KEY:
            message = f"This key has {of_key} open event streams, which is the maximum."
        elif account_id is None and len(self._listeners) >= MOST:
            message = f"This server has {MOST} open event streams, which is the maximum."
        elif account_id is not None and not self._has_room(account_id):
            message = (
                "This account may open no more event streams. All accounts together share "
                f"{MOST - OF_OPERATORS} of them."
            )
        else:
            return
        raise RateLimitError(
            f"{message} Close one, or try again later.",
            code="too_many_listeners",
            retry_after_s=10,
        )

    def _has_room(self, account_id: str) -> bool:
        at_work = Counter(
            listener.account_id for listener in self._listeners if listener.account_id is not None
        )
        return FairShare(MOST - OF_OPERATORS).may_begin(account_id, at_work)

    def _rest(self) -> None:
        self._changes.listen(None)
        self._dirty = Dirty(self._shown)
        if self._telling:
            self._telling.cancel()
            self._telling = None

    def _changed(self, changes: Sequence[Change]) -> None:
        for change in changes:
            self._dirty.add(change)
            if change.table.__tablename__ == "deployments":
                # Adapters run on the replicas of their base.
                for adapter in self._directory.adapters_of(change.id):
                    self._dirty.mark(EVENT, adapter)
        if self._dirty:
            self._news.set()

    async def _tell(self) -> None:
        next_stats = time.monotonic()
        while True:
            try:
                if self._dirty:
                    await self._tell_changes()
                if time.monotonic() >= next_stats:
                    next_stats = time.monotonic() + STATS_S
                    await self._tell_stats()
            except Exception:
                log.exception("event streams could not be updated; retrying")
                await asyncio.sleep(STATS_S)
            self._news.clear()
            if self._dirty:
                self._news.set()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, next_stats - time.monotonic())):
                    await self._news.wait()
                    await asyncio.sleep(GATHER_S)

    async def _tell_changes(self) -> None:
        async with contextlib.aclosing(self._dirty.taken()) as messages:
            async for message in messages:
                for listener in self._listeners:
                    if listener.reach.includes(message):
                        listener.tell(message.content)

    async def _tell_stats(self) -> None:
        self._mark_progress()
        # Keys for some deployments receive no runtime statistics.
        reaches = {
            listener.reach for listener in self._listeners if listener.reach.deployment_ids is None
        }
        if not reaches:
            return
        stats = await self._watch.look(lambda deployment_id: self._dirty.mark(EVENT, deployment_id))
        for reach in reaches:
            content = stats.message(reach, await self._credit(reach))
            for listener in list(self._listeners):
                if listener.reach == reach:
                    listener.tell(content)

    async def _credit(self, reach: Visibility) -> dict[str, Any] | None:
        """Returns the credit of a single account. None for several accounts, because no sum is
        sent.
        """
        if reach.accounts is None or len(reach.accounts) != 1:
            return None
        return await self._balances.of(next(iter(reach.accounts)))

    def _mark_progress(self) -> None:
        """Marks running objects with changed progress. No row shows the progress, because it exists
        only in memory.
        """
        percents = self._shown.percents()
        for key, percent in percents.items():
            if self._progress.get(key) != percent:
                self._dirty.mark(*key)
        self._progress = percents
