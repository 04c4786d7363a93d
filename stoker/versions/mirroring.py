"""Copies of calls to a version whose answers nobody waits for: how it would have answered."""

import asyncio
import logging
import math
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from stoker.asking.comparison import Comparison, Measure
from stoker.deployments.directory import Entry
from stoker.errors import StokerError
from stoker.runtime.interface import Call, Runtime
from stoker.turns import PARTY, Party
from stoker.wire.generation_request import Generation

MOST = 16
"""Copies that wait; further ones are dropped, as they hold what their callers sent."""
MOST_TALLIES = 1000
GIVE_WAY_S = 10.0
"""Longest wait for a moment in which nobody else's calls are at work; then a copy is dropped."""
_LOOK_S = 0.02

log = logging.getLogger(__name__)


@dataclass
class Latency:
    """Of calls that were answered."""

    calls: int = 0
    seconds: float = 0.0
    longest_s: float = 0.0

    def add(self, seconds: float) -> None:
        self.calls += 1
        self.seconds += seconds
        self.longest_s = max(self.longest_s, seconds)


@dataclass
class Tally:
    """What became of copies."""

    live: Latency = field(default_factory=Latency)
    """Of the calls that were copied and answered twice."""
    mirror: Latency = field(default_factory=Latency)
    failed: int = 0
    """Copies that ended with an error."""
    dropped: int = 0
    """Copies for which there was no time."""
    differs: int = 0
    """Answers that differ by what a trial goes by."""
    difference: float = 0.0
    """The largest between two numbers."""
    labels: int = 0
    equal_labels: int = 0
    texts: int = 0
    equal_texts: int = 0
    cosines: int = 0
    cosine_sum: float = 0.0
    least_cosine: float = 1.0

    def add(self, found: Comparison) -> None:
        self.differs += found.differs
        is_number = math.isfinite(found.difference)
        self.difference = max(self.difference, found.difference) if is_number else math.inf
        self.labels += len(found.labels)
        self.equal_labels += sum(found.labels)
        self.texts += len(found.texts)
        self.equal_texts += sum(found.texts)
        self.cosines += len(found.cosines)
        self.cosine_sum += math.fsum(found.cosines)
        self.least_cosine = min([self.least_cosine, *found.cosines])

    @property
    def measure(self) -> Measure:
        if self.labels:
            return "top_labels"
        return "cosine" if self.cosines else "texts"


@dataclass(frozen=True)
class _Copy:
    version_id: str
    live_id: str
    account_id: str
    call: Call | Generation
    answer: bytes
    seconds: float


class Mirrors:
    def __init__(
        self,
        runtime: Runtime,
        *,
        wait_s: float,
        timeout_s: float,
        draw: Callable[[], int] = lambda: secrets.randbelow(100),
    ) -> None:
        """
        Args:
            wait_s: for a version that has to be loaded.
            draw: 0 to 99, as chance has it.
        """
        self._runtime = runtime
        self._wait_s = wait_s
        self._timeout_s = timeout_s
        self._draw = draw
        self._queue: asyncio.Queue[_Copy] = asyncio.Queue(MOST)
        self._tallies: dict[tuple[str, str], Tally] = {}

    def offer(
        self, entry: Entry, live_id: str, call: Call | Generation, answer: bytes, seconds: float
    ) -> None:
        """Copy a call that was answered, as often as its deployment's owner wants it."""
        for share in entry.mirrors:
            if share.version_id == live_id or self._draw() >= share.percent:
                continue
            copy = _Copy(share.version_id, live_id, entry.account_id, call, answer, seconds)
            try:
                self._queue.put_nowait(copy)
            except asyncio.QueueFull:
                self._tally(copy).dropped += 1

    def found(self, version_id: str, live_id: str) -> Tally:
        """Of the copies of one version's calls that another one got."""
        return self._tallies.get((version_id, live_id), Tally())

    def forget(self, version_id: str) -> None:
        for one in [one for one in self._tallies if version_id in one]:
            del self._tallies[one]

    async def run(self) -> None:
        while True:
            copy = await self._queue.get()
            try:
                await self._repeat(copy)
            except Exception:
                log.exception("a copy of a call failed")

    async def _repeat(self, copy: _Copy) -> None:
        if not await self._is_quiet(copy.version_id):
            self._tally(copy).dropped += 1
            return
        PARTY.set(Party(copy.account_id))
        began = time.perf_counter()
        try:
            answer = await self._runtime.call(
                copy.version_id, copy.call, wait_s=self._wait_s, timeout_s=self._timeout_s
            )
        except StokerError as error:
            log.info("a copy was not answered", extra={"why": error.code})
            self._tally(copy).failed += 1
            return
        seconds = time.perf_counter() - began
        comparison = Comparison()
        await asyncio.to_thread(comparison.add, copy.answer, answer)
        tally = self._tally(copy)
        tally.live.add(copy.seconds)
        tally.mirror.add(seconds)
        tally.add(comparison)

    async def _is_quiet(self, version_id: str) -> bool:
        deadline = time.monotonic() + GIVE_WAY_S
        while self._runtime.at_work(besides=version_id):
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(_LOOK_S)
        return True

    def _tally(self, copy: _Copy) -> Tally:
        key = (copy.version_id, copy.live_id)
        if key not in self._tallies and len(self._tallies) >= MOST_TALLIES:
            del self._tallies[next(iter(self._tallies))]
        return self._tallies.setdefault(key, Tally())
