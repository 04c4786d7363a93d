"""Compares answers without blocking the event loop. Large answers are compared in a worker process.

Parsing JSON holds the interpreter's lock until it is done: 41 MB blocked all threads for 2.6 s.
"""

import asyncio
import hashlib
import logging

import msgspec

from stoker.base.workers import WorkerError, WorkerPool
from stoker.workloads.evaluation.replay.comparison import Comparison
from stoker.workloads.evaluation.replay.pairs import Pair, compared

SMALL_BYTES = 256 << 10
"""Maximum size in bytes of two answers together that are compared in this process."""
MOST_BYTES = 32 << 20
"""Maximum size in bytes of two answers that are parsed. Larger ones are compared by digest only."""
MEMORY_BYTES = 2 << 30
CPU_S, DEADLINE_S = 10.0, 120.0
"""Limits in seconds of CPU time and wall time for one pair."""

log = logging.getLogger(__name__)


class Comparer:
    def __init__(self, module: str = "stoker.workloads.evaluation.replay.process") -> None:
        self._workers = WorkerPool(
            module, memory_bytes=MEMORY_BYTES, deadline_s=DEADLINE_S, cpu_s=CPU_S
        )

    async def compare(
        self, account: str, reference: bytes, found: bytes, *, is_streamed: bool = False
    ) -> Comparison:
        """Returns how much two answers differ.

        Answers that are too large, or take too long, are compared as a whole. The comparison
        reports this (`unread`).
        """
        pair = Pair(reference, found, is_streamed)
        try:
            if pair.size <= SMALL_BYTES:
                return await asyncio.to_thread(compared, pair)
            if pair.size <= MOST_BYTES:
                content = await self._workers.ask(account, msgspec.msgpack.encode(pair))
                return msgspec.msgpack.decode(content, type=Comparison)
        except (WorkerError, RecursionError) as error:
            log.info("answers are compared as a whole", extra={"why": str(error)})
        digests = await asyncio.to_thread(_digests, pair)
        return Comparison(texts=[digests[0] == digests[1]], unread=1)

    async def close(self) -> None:
        await self._workers.close()


def _digests(pair: Pair) -> tuple[bytes, bytes]:
    # hashlib lets other threads run meanwhile.
    return hashlib.sha256(pair.reference).digest(), hashlib.sha256(pair.found).digest()
