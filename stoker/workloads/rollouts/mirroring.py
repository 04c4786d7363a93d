"""Copies of calls to a mirror version. No client waits for the answers, which show how the version
would have answered.
"""

import asyncio
import json
import logging
import secrets
import time
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import msgspec

from stoker.base.errors import StokerError
from stoker.base.fairness import CURRENT_CALLER, FairQueue, Party, Tier
from stoker.base.ids import Prefix, new_id
from stoker.inference.calls import LONGEST_COPIED, Calls
from stoker.registry.deployments.directory import DirectoryEntry
from stoker.runtime.interface import Call
from stoker.wire.generation_request import Generation
from stoker.workloads.evaluation.replay.comparer import SMALL_BYTES, Comparer
from stoker.workloads.evaluation.replay.streams import folded
from stoker.workloads.rollouts import comparisons
from stoker.workloads.rollouts.comparisons import Example, Pair, PairResults
from stoker.workloads.rollouts.tally import ComparisonTally

MOST = 16
"""Maximum number of waiting copies of all accounts together. Each holds the body of its request."""
MOST_PAIRS = 1000
GIVE_WAY_S = 10.0
"""Longest wait in seconds for a moment without other active calls. After it, a copy is dropped."""
SHOWN = 4000
"""Characters of a request or an answer that are kept in an example."""
_LOOK_S = 0.02
_WRITE_S = 1.0

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _MirroredCall:
    pair: Pair
    entry: DirectoryEntry
    call: Call | Generation
    answer: bytes
    seconds: float
    is_streamed: bool


class Mirrors:
    def __init__(
        self,
        calls: Calls,
        comparer: Comparer,
        *,
        draw: Callable[[], int] = lambda: secrets.randbelow(100),
    ) -> None:
        """
        Args:
            draw: returns a random number from 0 to 99.
        """
        self._calls = calls
        self._database = calls.database
        self._secret = calls.secret
        self._comparer = comparer
        self._draw = draw
        self._queue: FairQueue[_MirroredCall] = FairQueue(MOST)
        self._found: dict[Pair, tuple[str, PairResults]] = {}
        """Results by pair, with the id of this server's stored record."""
        self._unwritten: set[Pair] = set()
        self._written_at = 0.0

    def offer(
        self,
        entry: DirectoryEntry,
        live_id: str,
        call: Call | Generation,
        answer: bytes,
        seconds: float,
        *,
        is_streamed: bool = False,
    ) -> None:
        """Queues a copy of an answered call, at the rate that the deployment's owner has set."""
        for share in entry.mirrors:
            if share.version_id == live_id or self._draw() >= share.percent:
                continue
            pair = share.version_id, live_id
            copy = _MirroredCall(pair, entry, call, answer, seconds, is_streamed)
            if dropped := self._queue.put(entry.account_id, copy):
                self._of(dropped.pair).tally.dropped += 1

    async def found(self, version_id: str, live_id: str) -> PairResults:
        """Returns the results of one version's calls that were copied to another, on all
        servers.
        """
        pair = version_id, live_id
        identifier, here = self._found.get(pair, (None, PairResults()))
        whole = await comparisons.read(self._database, self._secret, pair, besides=identifier)
        whole.tally.merge(here.tally)
        whole.examples = sorted(whole.examples + here.examples, key=lambda example: example["at"])
        del whole.examples[: -comparisons.EXAMPLES]
        return whole

    def forget(self, version_id: str) -> None:
        for pair in [pair for pair in self._found if version_id in pair]:
            del self._found[pair]
            self._unwritten.discard(pair)

    async def run(self) -> None:
        try:
            while True:
                if self._unwritten and time.monotonic() - self._written_at > _WRITE_S:
                    await self._write()
                try:
                    copy = await asyncio.wait_for(
                        self._queue.get(), _WRITE_S if self._unwritten else None
                    )
                except TimeoutError:
                    continue
                try:
                    await self._repeat(copy)
                except Exception:
                    log.exception("mirrored call failed")
        finally:
            await self._write()

    async def _write(self) -> None:
        results = {pair: self._found[pair] for pair in self._unwritten & self._found.keys()}
        self._unwritten.clear()
        self._written_at = time.monotonic()
        if not results:
            return
        try:
            async with self._database.transaction() as session:
                await comparisons.write(session, self._secret, results)
        except Exception:
            log.exception("results of mirrored calls could not be written")
            self._unwritten |= results.keys()

    async def _repeat(self, copy: _MirroredCall) -> None:
        if not await self._is_quiet(copy.pair[0]):
            self._of(copy.pair).tally.dropped += 1
            return
        CURRENT_CALLER.set(Party(copy.entry.account_id, is_copy=True, tier=Tier.FLEX))
        began = time.perf_counter()
        try:
            answer = await self._answer(copy)
        except StokerError as error:
            log.info("mirrored call got no answer", extra={"why": error.code})
            self._of(copy.pair).tally.failed += 1
            return
        seconds = time.perf_counter() - began
        comparison = await self._comparer.compare(
            copy.entry.account_id, copy.answer, answer, is_streamed=copy.is_streamed
        )
        example = None
        if copy.entry.keeps_examples and comparison.differs:
            example = await asyncio.to_thread(_example, copy, answer)
        result = self._of(copy.pair)
        result.tally.live.add(copy.seconds)
        result.tally.mirror.add(seconds)
        result.tally.add(comparison)
        if example:
            result.show(example)

    async def _answer(self, copy: _MirroredCall) -> bytes:
        calls, entry = self._calls.of_version(copy.entry, copy.pair[0])
        wait_s = calls.settings.wait_max_s
        if not copy.is_streamed:
            return await calls.run(entry, copy.call, wait_s=wait_s)
        stream = calls.stream(entry, copy.call, wait_s=wait_s, keep_alive=b"")
        async with aclosing(stream) as parts:
            content = bytearray()
            async for part in parts:
                content += part
                if len(content) > LONGEST_COPIED:
                    # The answers differ: the live version streamed a shorter one.
                    break
            return bytes(content)

    async def _is_quiet(self, version_id: str) -> bool:
        deadline = time.monotonic() + GIVE_WAY_S
        while self._calls.runtime.at_work(besides=version_id):
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(_LOOK_S)
        return True

    def _of(self, pair: Pair) -> PairResults:
        """Returns this server's counts of a pair, which the caller is about to change."""
        if pair not in self._found:
            if len(self._found) >= MOST_PAIRS:
                oldest = next(iter(self._found))
                del self._found[oldest]
                self._unwritten.discard(oldest)
            self._found[pair] = new_id(Prefix.COMPARISON), PairResults(ComparisonTally())
        self._unwritten.add(pair)
        return self._found[pair][1]


def _example(copy: _MirroredCall, answer: bytes) -> Example:
    live = copy.answer
    if copy.is_streamed and len(live) + len(answer) <= SMALL_BYTES:
        live, answer = folded(live), folded(answer)
    request = msgspec.to_builtins(copy.call, builtin_types=(bytes, bytearray), enc_hook=_in_words)
    request_text = json.dumps(request, default=_in_words)
    return Example(
        at=round(time.time(), 3),
        request=request_text[:SHOWN],
        live=live[: 4 * SHOWN].decode(errors="replace")[:SHOWN],
        mirror=answer[: 4 * SHOWN].decode(errors="replace")[:SHOWN],
    )


def _in_words(value: Any) -> str:
    """Describes content that is not JSON, such as pictures and sound."""
    size = f" of {len(value)} bytes" if isinstance(value, bytes | bytearray) else ""
    return f"<{type(value).__name__}{size}>"
