"""Decode steps that are captured once and replayed: one new token for each of many sequences.

A captured step has fixed shapes. Its inputs lie in a fixed buffer, with as many rows as its bucket
has. Rows without a sequence write to the spare block, and their results are ignored.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from stoker.models.engines.cuda_graphs import CudaGraphs
from stoker.models.engines.recording_guard import DeviceLostError, RecordingGuard
from stoker.wire.passes import RecordedPasses

log = logging.getLogger(__name__)

BUCKETS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""Numbers of sequences for which steps are captured."""
WIDTHS = tuple(1024 * 4**power for power in range(8))
"""Lengths of sequences in tokens for which steps are captured."""
WANTED = 8
"""Number of steps without a fitting capture after which the step is captured between steps."""
PAUSE_S, REST = 1.0, 20
"""Minimum time between two captures while sequences run: in seconds, and as a ratio to the duration
of the last capture. A capture takes as long as some steps that are not captured.
"""
MOST_BYTES = 512 << 20
"""Maximum bytes of device memory for all captured steps."""

Replay = Callable[[], None]


class Capturing(Protocol):
    """Captures steps on one kind of device."""

    def capture(self, step: Callable[[], None]) -> Replay:
        """Returns a function that repeats the step on the same memory.

        Raises any error of torch if the step cannot be captured.
        """
        ...

    def is_usable(self) -> bool:
        """Waits for the device. Returns False if the device can no longer compute."""
        ...

    def used_bytes(self) -> int:
        """Returns the bytes of device memory in use."""
        ...


class EagerCapturing:
    """Implements `Capturing` by calling the step again. Runs on any device."""

    def capture(self, step: Callable[[], None]) -> Replay:
        step()
        return step

    def is_usable(self) -> bool:
        return True

    def used_bytes(self) -> int:
        return 0


class CudaCapturing:
    """Implements `Capturing` with CUDA graphs that share one memory pool."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._graphs = CudaGraphs(device)

    def capture(self, step: Callable[[], None]) -> Replay:
        self._graphs.warm_up(step)
        graph, _ = self._graphs.capture(step)
        return graph.replay

    def is_usable(self) -> bool:
        return self._graphs.is_usable()

    def used_bytes(self) -> int:
        free, total = torch.cuda.mem_get_info(self._device)
        return total - free


@dataclass(frozen=True)
class StepBuffer:
    """Inputs of a captured step: one row per sequence, in one buffer on the device."""

    packed: torch.Tensor
    """int32 (rows · (4 + blocks),): the fields below one after the other."""
    rows: int

    def _part(self, place: int) -> torch.Tensor:
        return self.packed[place * self.rows : (place + 1) * self.rows]

    @property
    def ids(self) -> torch.Tensor:
        return self._part(0)

    @property
    def positions(self) -> torch.Tensor:
        return self._part(1)

    @property
    def slots(self) -> torch.Tensor:
        return self._part(2)

    @property
    def lengths(self) -> torch.Tensor:
        """Tokens of each sequence, including the new one."""
        return self._part(3)

    @property
    def table(self) -> torch.Tensor:
        """Blocks of each sequence: (rows, blocks)."""
        return self.packed[4 * self.rows :].view(self.rows, -1)


@dataclass(frozen=True)
class StepRow:
    """New token of one sequence."""

    token: int
    place: int
    """Number of the sequence's tokens before it."""
    slot: int
    blocks: Sequence[int]
    shift: int = 0
    """Its position is the sum of `place` and this shift."""


@dataclass(frozen=True)
class _Captured:
    buffer: StepBuffer
    staging: torch.Tensor
    """The buffer's content on the host."""
    replay: Replay


class CapturedSteps:
    """Captured steps of one model."""

    def __init__(
        self,
        step: Callable[[StepBuffer], torch.Tensor],
        capturing: Capturing,
        *,
        vocabulary: int,
        block_tokens: int,
        spare_block: int,
        longest: int,
        device: torch.device,
        most_bytes: int = MOST_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Args:
            step: computes a step from its inputs and returns the logits (rows, vocabulary).
            spare_block: block for rows without a sequence.
            longest: maximum tokens of a sequence.
        """
        self._step = step
        self._capturing = capturing
        self._vocabulary = vocabulary
        self._block_tokens = block_tokens
        self._spare_block = spare_block
        self._longest = longest
        self._device = device
        self._most_bytes = most_bytes
        self._clock = clock
        self._captured: dict[tuple[int, int], _Captured] = {}
        """Maps a number of sequences and of blocks to the captured step."""
        self._wanted = Counter[tuple[int, int]]()
        """Counts the steps without a fitting capture by their shape."""
        self._used = 0
        self._next_at = 0.0
        """Earliest time of the next capture while sequences run."""
        self._guard = RecordingGuard()
        self._skipped: set[tuple[int, int]] = set()
        """Shapes whose captures ended earlier replicas."""
        self._problem = ""
        """Reason that no more steps are captured."""
        self._logits: torch.Tensor | None = None
        """Results of every captured step: float32 (rows, vocabulary)."""

    def guard(self, guard: RecordingGuard) -> None:
        """Notes each capture while it runs, from now on. Skips captures that ended earlier
        replicas.
        """
        self._guard = guard
        self._problem = guard.problem

    @property
    def state(self) -> RecordedPasses:
        return RecordedPasses(len(self._captured), self._problem)

    @torch.inference_mode()
    def logits(self, rows: Sequence[StepRow]) -> torch.Tensor | None:
        """Returns the logits after each row's token. None if no captured step fits.

        The result is valid until the next call.
        """
        blocks = max(len(row.blocks) for row in rows)
        fitting = [
            shape for shape in self._captured if shape[0] >= len(rows) and shape[1] >= blocks
        ]
        exact = self._shape(len(rows), blocks)
        if exact and exact not in self._captured:
            self._wanted[exact] += 1
        if not fitting or self._logits is None:
            return None
        captured = self._captured[min(fitting)]
        _fill(captured, rows, self._spare_block, self._block_tokens)
        captured.replay()
        return self._logits[: len(rows)]

    def capture_between(self) -> None:
        """Captures the shape that most steps lacked, if enough steps lacked it.

        Called between two steps. At most one capture per `PAUSE_S` delays a step. Raises
        `DeviceLostError` if the device can no longer compute.
        """
        if not self._wanted or self._clock() < self._next_at:
            return
        shape, count = self._wanted.most_common(1)[0]
        if count >= WANTED:
            self._capture(shape)

    def capture_idle(self) -> bool:
        """Captures one shape while no sequence runs. Returns True if more shapes remain. Raises
        `DeviceLostError` if the device can no longer compute.
        """
        done = self._captured.keys() | self._skipped
        wanted = [shape for shape in self._wanted if shape not in done]
        narrow = -(-min(WIDTHS[0], self._longest) // self._block_tokens)
        # The largest is first, so that the others reuse its memory.
        wanted += [shape for bucket in reversed(BUCKETS) if (shape := (bucket, narrow)) not in done]
        if self._problem or not wanted:
            return False
        self._capture(wanted[0])
        return not self._problem and len(wanted) > 1

    def _shape(self, rows: int, blocks: int) -> tuple[int, int] | None:
        """Returns the smallest shape for a step. None if nothing is captured for it."""
        bucket = next((bucket for bucket in BUCKETS if bucket >= rows), None)
        if bucket is None or self._problem:
            return None
        width = next(width for width in WIDTHS if width >= blocks * self._block_tokens)
        shape = bucket, -(-min(width, self._longest) // self._block_tokens)
        return None if shape in self._skipped else shape

    @torch.inference_mode()
    def _capture(self, shape: tuple[int, int]) -> None:
        self._wanted.pop(shape, None)
        name = "decode steps {}x{}".format(*shape)
        if not self._guard.allows(name):
            log.warning("a step is not captured, because it ended a replica: %s", name)
            self._skipped.add(shape)
            return
        started, before = self._clock(), self._capturing.used_bytes()
        with self._guard.recording(name):
            try:
                self._captured[shape] = self._made(*shape)
            except Exception as error:
                self._fail(error)
                return
        ended = self._clock()
        self._next_at = ended + max(PAUSE_S, REST * (ended - started))
        self._used += max(self._capturing.used_bytes() - before, 0)
        if self._used > self._most_bytes:
            self._stop("The captured steps hold all memory that they may use.")
            log.info("no more steps are captured: they hold %d MiB", self._used >> 20)

    def _fail(self, error: Exception) -> None:
        log.error("steps cannot be captured: every step runs without a graph", exc_info=error)
        reason, *_ = str(error).splitlines() or [type(error).__name__]
        if not self._capturing.is_usable():
            raise DeviceLostError(f"The device failed while a step was captured: {reason}")
        self._stop(f"The model's steps cannot be captured: {reason}")

    def _stop(self, reason: str) -> None:
        self._problem = reason
        self._wanted.clear()

    def _made(self, rows: int, blocks: int) -> _Captured:
        if self._logits is None:
            self._logits = torch.zeros(BUCKETS[-1], self._vocabulary, device=self._device)
        results = self._logits[:rows]
        staging = torch.zeros(rows * (4 + blocks), dtype=torch.int32)
        if self._device.type == "cuda":
            staging = staging.pin_memory()
        buffer = StepBuffer(torch.zeros_like(staging, device=self._device), rows)
        captured = _Captured(buffer, staging, lambda: None)
        _fill(captured, [], self._spare_block, self._block_tokens)

        def step() -> None:
            results.copy_(self._step(buffer))

        return _Captured(buffer, staging, self._capturing.capture(step))


def _fill(
    captured: _Captured, rows: Sequence[StepRow], spare_block: int, block_tokens: int
) -> None:
    """Copies the inputs of a step to its buffer. Further rows get the spare block."""
    host = StepBuffer(captured.staging, captured.buffer.rows)
    # Plain assignments to NumPy's view are faster than those to a tensor.
    table = host.table.numpy()
    table.fill(spare_block)
    for entry, row in zip(table, rows, strict=False):
        entry[: len(row.blocks)] = row.blocks
    empty = captured.buffer.rows - len(rows)
    host.ids.numpy()[:] = [row.token for row in rows] + [0] * empty
    host.positions.numpy()[:] = [row.place + row.shift for row in rows] + [0] * empty
    host.slots.numpy()[:] = [row.slot for row in rows] + [spare_block * block_tokens] * empty
    host.lengths.numpy()[:] = [row.place + 1 for row in rows] + [1] * empty
    captured.buffer.packed.copy_(captured.staging, non_blocking=True)
