"""Finds the batch budget: how many padded tokens, or their like, a forward pass is best at.

The best batch differs by engine and machine: on two cores OpenVINO is fastest one by one, torch at
about eight. So it is measured, in the replica's idle moments after loading, in steps so short that
a request never waits for more than one of them; the gateway keeps the result with the artifact.
"""

import time
from collections.abc import Iterator

from stoker.replica.batching import cost
from stoker.replica.engines.interface import Engine
from stoker.replica.stages import Stages

DEFAULT_BUDGET = 512
PROBE_TOKENS = 32
SIZES = (1, 2, 4, 8, 16, 32)
LIMIT_S = 1.0
# A larger batch costs its first request latency: it must gain at least this much in throughput.
WORTH = 1.05


class Calibration:
    def __init__(self, known: int | None) -> None:
        self.budget = known or DEFAULT_BUDGET
        self.measured: int | None = known
        self._steps: Iterator[int | None] | None = None

    @property
    def finished(self) -> bool:
        return self.measured is not None

    def step(self, engine: Engine, stages: Stages) -> bool:
        """Measure a little; True once the budget has just been found."""
        if self.finished:
            return False
        if self._steps is None:
            self._steps = _measure(engine, stages)
        found = next(self._steps, self.budget)
        if found is not None:
            self.measured = self.budget = found
        return found is not None


def _measure(engine: Engine, stages: Stages) -> Iterator[int | None]:
    """Yields None between forward passes, the budget at the end."""
    sample = stages.probe(PROBE_TOKENS)
    if sample is None:
        yield DEFAULT_BUDGET
        return
    best_size, best_rate, spent = 1, 0.0, 0.0
    for size in SIZES:
        seconds: list[float] = []
        # The first pass of a shape builds its kernels, and a neighbour may disturb any of them.
        for _ in range(3):
            started = time.perf_counter()
            engine.forward([sample] * size)
            seconds.append(time.perf_counter() - started)
            yield None
        spent += sum(seconds)
        rate = size / min(seconds)
        if rate > best_rate * WORTH:
            best_size, best_rate = size, rate
        if spent + 6 * min(seconds) > LIMIT_S:
            break
    yield best_size * cost(stages.length(sample), stages.fixed_cost(sample))
