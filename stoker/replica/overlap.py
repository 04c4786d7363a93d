"""Prepares the next batch while the device computes one.

While batch n computes, the host collates batch n+1 and starts the copies of its inputs. Once n has
ended, n+1 is launched, and then the results of n are distributed. At most one batch computes, so a
failed pass concerns one batch only.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from stoker.models.engines.interface import OverlappingEngine, RunningBatch
from stoker.replica.batch_choice import QueuedSample
from stoker.replica.batching import BatchQueue
from stoker.replica.counters import Pulse
from stoker.replica.passes import Passes
from stoker.wire.flight import FlightRecord

log = logging.getLogger(__name__)

_NEWEST = 0.3
"""Weight of the newest duration in an average, if it is longer than the average."""
_POLL_S, _POLL_SHARE = 1e-4, 0.05
"""Interval between two checks whether a pass has ended: seconds, and share of the time since its
launch. The longer one is used.
"""

_MOST_LAUNCH_S = 0.02
"""Maximum duration of a launch, in seconds, with which finished results wait for the next launch. A
model that decides between the steps of a pass computes while it is launched.
"""

Batch = Sequence[QueuedSample]


class BatchResults(Protocol):
    """Receives the result of each batch on the engine's thread."""

    def launched(self, batch: Batch) -> None:
        """Receives a batch whose pass starts now."""
        ...

    def answer(self, batch: Batch, outputs: Sequence[Mapping[str, Any]], seconds: float) -> None:
        """Receives a batch's outputs and the duration of its pass in seconds."""
        ...

    def fail(self, batch: Batch, error: Exception) -> None:
        """Receives a batch that could not be computed. May compute its entries one by one."""
        ...


@dataclass(frozen=True)
class _Staged:
    batch: Batch
    inputs: Any
    """Inputs for `OverlappingEngine.launch`, or the error that prevented them."""


@dataclass(frozen=True)
class _Running:
    batch: Batch
    pending: RunningBatch | Exception
    """Pass, or the error that prevented it."""
    since: float
    """Time of the launch, in seconds."""


class StagingPace:
    """Estimates when to prepare the next batch: as late as possible, so that it is as full as
    possible, but before the device has nothing to do.
    """

    def __init__(self) -> None:
        self._pass_s = self._staging_s = 0.0

    def passed(self, seconds: float) -> None:
        self._pass_s = _average(self._pass_s, seconds)

    def staged(self, seconds: float) -> None:
        self._staging_s = _average(self._staging_s, seconds)

    def spare_s(self, running_s: float) -> float:
        """Returns the seconds until the next batch must be prepared.

        Args:
            running_s: seconds for which the device has computed the current batch.
        """
        return max(0.0, self._pass_s - self._staging_s - running_s)


class Overlap:
    """Runs a queue's batches on an engine whose device computes while the host continues."""

    def __init__(
        self,
        engine: OverlappingEngine,
        queue: BatchQueue,
        results: BatchResults,
        flight: FlightRecord,
        *,
        passes: Passes,
        pulse: Pulse,
        taken: Callable[[], None] = lambda: None,
        pauses: Callable[[], bool] = lambda: False,
    ) -> None:
        """
        Args:
            taken: called after a batch was taken from the queue, before it is staged.
            pauses: returns True if no other batch should begin now.
        """
        self._engine = engine
        self._queue = queue
        self._results = results
        self._flight = flight
        self._passes = passes
        self._pulse = pulse
        self._taken = taken
        self._pauses = pauses
        self.is_usable = True
        """False once the device can no longer compute."""
        self._pace = StagingPace()
        self._launch_s = 0.0
        """Duration of the latest launch in seconds."""

    def run(self) -> None:
        """Runs batches until the queue is empty or `pauses` returns True."""
        self._pulse.is_working = True
        running = self._launched(self._staged())
        while running:
            staged = self._staged_meanwhile(running)
            distribute = self._finished(running)
            is_long = self._launch_s > _MOST_LAUNCH_S
            if is_long:
                distribute()
            following = self._launched(staged or self._staged())
            if not is_long:
                distribute()
            if following:
                # A failed batch's entries may have been recorded instead.
                self._record(following.batch)
            self._pulse.stepped()
            running = following
        self._flight.running.of(())
        self._pulse.is_working = False

    def _staged_meanwhile(self, running: _Running) -> _Staged | None:
        """Stages the next batch while one computes. None if nothing waits."""
        pending = running.pending
        while not isinstance(pending, Exception) and not pending.is_ready:
            elapsed_s = time.perf_counter() - running.since
            interval_s = max(_POLL_S, _POLL_SHARE * elapsed_s)
            if spare_s := self._pace.spare_s(elapsed_s):
                may_stage = self._queue.wait_until_full(min(spare_s, interval_s))
            else:
                may_stage = self._queue.wait_for_entries(interval_s)
            if may_stage:
                break
        return self._staged()

    def _staged(self) -> _Staged | None:
        if self._pauses():
            return None
        # Entries that arrive while this replica waits for its turn still join the batch.
        with self._passes:
            batch = self._queue.take()
        if not batch:
            return None
        self._taken()
        started = time.perf_counter()
        try:
            inputs = self._engine.stage([entry.sample for entry in batch])
        except Exception as error:
            return _Staged(batch, error)
        self._pace.staged(time.perf_counter() - started)
        return _Staged(batch, inputs)

    def _launched(self, staged: _Staged | None) -> _Running | None:
        """Launches a batch, unless all its requests were cancelled since it was staged."""
        if staged is None or all(entry.owner.done for entry in staged.batch):
            return None
        self._record(staged.batch)
        self._results.launched(staged.batch)
        since = time.perf_counter()
        pending = self._pending(staged.inputs)
        self._launch_s = time.perf_counter() - since
        return _Running(staged.batch, pending, since)

    def _record(self, batch: Batch) -> None:
        self._flight.running.of(entry.request_id for entry in batch)

    def _pending(self, inputs: Any) -> RunningBatch | Exception:
        if isinstance(inputs, Exception):
            return inputs
        try:
            return self._engine.launch(inputs)
        except Exception as error:
            return error

    def _finished(self, running: _Running) -> Callable[[], None]:
        """Waits for a batch. Returns a function that distributes its result."""
        batch, results = running.batch, self._results
        outputs = _outputs(running.pending)
        if isinstance(outputs, Exception):
            self.is_usable = self._engine.is_usable()
            error = outputs
            return lambda: results.fail(batch, error)
        seconds = time.perf_counter() - running.since
        self._pace.passed(seconds)
        return lambda: results.answer(batch, outputs, seconds)


def _outputs(pending: RunningBatch | Exception) -> list[Mapping[str, Any]] | Exception:
    if isinstance(pending, Exception):
        return pending
    try:
        return pending.outputs()
    except Exception as error:
        return error


def _average(average: float, newest: float) -> float:
    """Returns an average that follows a shorter duration at once and a longer one slowly."""
    return average + _NEWEST * (newest - average) if 0 < average < newest else newest
