"""Measures the batch budget: the number of padded tokens at which a forward pass is most efficient.

The best batch differs by engine and machine: on two cores OpenVINO is fastest one by one, torch at
about eight. Calibration runs in the replica's idle moments after loading. Its steps are so short
that a request never waits for more than one of them. The gateway stores the result with the
artifact.
"""

import logging
import math
import time
from collections.abc import Iterator, Mapping, Sequence

from stoker.models.engines.interface import Engine, overlaps
from stoker.models.engines.shortage import free_unused
from stoker.models.stages.base import Sample, Stages
from stoker.models.stages.watch import AbandonedError, Watch
from stoker.replica.batch_choice import cost

log = logging.getLogger(__name__)

DEFAULT_BUDGET = 512
PROBE_TOKENS = 32
SIZES = (1, 2, 4, 8, 16, 32)
DEVICE_SIZES = (*SIZES, 64, 128, 256, 512, 1024)
"""Sizes for a GPU, where a pass over a thousand tokens takes as long as a pass over one."""
MOST_DEVICE_TOKENS = 32_768
"""Maximum number of padded tokens of a batch on a GPU."""
STEP_S = 1.5
"""Maximum duration in seconds of a measured forward pass: a request may have to wait for it."""
LIMIT_S = 3.0
LIMIT_PASSES = 15
"""Large models get the time of this many passes of one sample, if that is longer."""
# A larger batch costs its first request latency, so it must gain at least this much throughput.
WORTH = 1.05


class Calibration:
    """Batch budget of the running engine, which `begin` names."""

    def __init__(self, known: Mapping[str, int]) -> None:
        self._known = dict(known)
        self._steps: Iterator[int | None] | None = None
        self._news: tuple[str, int] | None = None
        self._engine = ""
        self._measured = DEFAULT_BUDGET
        self._most: int | None = None
        """Maximum budget since a batch ran out of memory. None if no batch did."""

    @property
    def budget(self) -> int:
        return self._measured if self._most is None else min(self._measured, self._most)

    def limit(self, budget: int) -> None:
        """Limits the budget for the rest of the process, because a larger batch ran out of
        memory.
        """
        self._most = min(self.budget, budget)
        log.warning("batch budget limited to %d: memory ran out", self._most)

    def begin(self, engine: str) -> None:
        self._engine = engine
        self._steps = None
        self._measured = self._known.get(engine, DEFAULT_BUDGET)

    @property
    def is_done(self) -> bool:
        """True if the budget of the running engine is known."""
        return self._engine in self._known

    def step(self, engine: Engine, stages: Stages) -> bool:
        """Runs one short measurement. Returns True if it found the budget."""
        if self.is_done:
            return False
        if self._steps is None:
            self._steps = _measure(engine, stages)
        budget = next(self._steps, self._measured)
        if budget is None:
            return False
        self._known[self._engine] = self._measured = budget
        self._news = (self._engine, budget)
        return True

    def news(self) -> tuple[str, int] | None:
        """Returns an engine and its new budget, only once."""
        news, self._news = self._news, None
        return news


def _measure(engine: Engine, stages: Stages) -> Iterator[int | None]:
    """Yields None between forward passes and the budget at the end."""
    sample = stages.probe(PROBE_TOKENS)
    if sample is None:
        yield DEFAULT_BUDGET
        return
    best_size, best_rate, spent, limit = 1, 0.0, 0.0, LIMIT_S
    each = cost(stages.length(sample), stages.fixed_cost(sample))
    for size in _sizes(engine, each):
        seconds: list[float] = []
        # The first pass of a shape builds its kernels, and other processes may disturb any pass.
        while sum(seconds) < math.inf and len(seconds) < (3 if sum(seconds) < LIMIT_S / 2 else 2):
            seconds.append(_timed(engine, [sample] * size))
            yield None
        spent += sum(seconds)
        fastest = min(seconds)
        if size == 1:
            limit = max(LIMIT_S, LIMIT_PASSES * fastest)
        if size / fastest > best_rate * WORTH:
            best_size, best_rate = size, size / fastest
        if spent + 4 * fastest > limit or 2 * fastest > STEP_S:
            break
    yield best_size * each


def _sizes(engine: Engine, each: int) -> Sequence[int]:
    """Returns the sizes of the batches to measure, for samples of `each` padded tokens."""
    if not overlaps(engine):
        return SIZES
    return [size for size in DEVICE_SIZES if size == 1 or size * each <= MOST_DEVICE_TOKENS]


def _timed(engine: Engine, samples: list[Sample]) -> float:
    """Returns the seconds of a forward pass, or infinity if it takes too long or fails, such as for
    lack of memory.
    """
    started = time.perf_counter()
    try:
        engine.forward(samples, _Deadline())
        return time.perf_counter() - started
    except AbandonedError:
        return math.inf
    except Exception:
        log.warning("measuring a batch of %d failed", len(samples), exc_info=True)
    free_unused()
    return math.inf


class _Deadline(Watch):
    """Deadline that ends a pass of many steps if it takes too long."""

    def __init__(self) -> None:
        self._ends_at = time.perf_counter() + STEP_S

    def step(self, fraction: float) -> None:
        if time.perf_counter() > self._ends_at:
            raise AbandonedError
