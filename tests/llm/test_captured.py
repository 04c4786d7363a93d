"""Captured decode steps: buckets, padding, limits and failures."""

import logging
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from stoker.models.engines.recording_guard import DeviceLostError, RecordingGuard
from stoker.models.llm.engines.paged import captured
from stoker.models.llm.engines.paged.captured import (
    BUCKETS,
    PAUSE_S,
    WANTED,
    CapturedSteps,
    EagerCapturing,
    StepBuffer,
    StepRow,
)
from stoker.wire.passes import RecordedPasses

VOCABULARY, BLOCK_TOKENS, SPARE = 7, 256, 99


def rows(count: int, blocks: int = 1) -> list[StepRow]:
    return [
        StepRow(number, 300 + number, 5 * number, [*range(number, number + blocks)], -number)
        for number in range(1, count + 1)
    ]


def step(buffer: StepBuffer) -> torch.Tensor:
    """Returns logits that reveal the inputs of each row."""
    parts = (
        buffer.ids,
        buffer.positions,
        buffer.slots,
        buffer.lengths,
        buffer.table[:, 0],
        buffer.table[:, -1],
        buffer.table.sum(1),
    )
    return torch.stack([part.float() for part in parts], dim=1)


def described(row: StepRow, width: int) -> list[float]:
    table = [*row.blocks, *[SPARE] * (width - len(row.blocks))]
    position = row.place + row.shift
    return [row.token, position, row.slot, row.place + 1, table[0], table[-1], sum(table)]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Recorded(EagerCapturing):
    """Counts captures, and fails or holds memory as a device would."""

    def __init__(self, a_step: int = 0, fails: bool = False) -> None:
        self.captures: list[int] = []
        self._a_step = a_step
        self._fails = fails

    def capture(self, step: Callable[[], None]) -> Callable[[], None]:
        self.captures.append(1)
        if self._fails:
            raise RuntimeError("operation not permitted when stream is capturing")
        return super().capture(step)

    def used_bytes(self) -> int:
        return len(self.captures) * self._a_step


def made(capturing: EagerCapturing | None = None, **options: Any) -> CapturedSteps:
    return CapturedSteps(
        step,
        capturing or EagerCapturing(),
        **{
            "vocabulary": VOCABULARY,
            "block_tokens": BLOCK_TOKENS,
            "spare_block": SPARE,
            "longest": 20_000,
            "device": torch.device("cpu"),
            **options,
        },
    )


def captured_all(steps: CapturedSteps) -> CapturedSteps:
    while steps.capture_idle():
        pass
    return steps


def answer(steps: CapturedSteps, given: Sequence[StepRow]) -> list[list[float]]:
    logits = steps.logits(given)
    assert logits is not None
    return logits.tolist()


class TestBuckets:
    @pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 16, 17, 33, 200, 256])
    def test_each_row_gets_its_own_inputs(self, count: int) -> None:
        steps = captured_all(made())
        given = rows(count)
        assert answer(steps, given) == [described(row, 4) for row in given]

    def test_fewer_rows_after_more(self) -> None:
        """Rows of the former step do not stay in the buffer."""
        seen: list[StepBuffer] = []

        def watched(buffer: StepBuffer) -> torch.Tensor:
            seen.append(buffer)
            return step(buffer)

        steps = made()
        steps._step = watched
        captured_all(steps)
        answer(steps, rows(4, blocks=3))
        answer(steps, rows(3))
        assert seen[-1].rows == 4
        assert seen[-1].slots.tolist() == [5, 10, 15, SPARE * BLOCK_TOKENS]
        assert seen[-1].lengths.tolist()[-1] == 1
        assert seen[-1].table[1:].tolist() == [
            [2, SPARE, SPARE, SPARE],
            [3, SPARE, SPARE, SPARE],
            [SPARE] * 4,
        ]

    def test_more_rows_than_any_bucket(self) -> None:
        assert captured_all(made()).logits(rows(BUCKETS[-1] + 1)) is None

    def test_sequences_longer_than_what_is_captured(self) -> None:
        steps = captured_all(made())
        assert steps.logits(rows(2, blocks=5)) is None
        assert not steps.capture_idle(), "the longer step is captured, and no other is left"
        assert answer(steps, rows(2, blocks=5)) == [described(row, 16) for row in rows(2, 5)]

    def test_the_widest_step_is_no_wider_than_a_sequence(self) -> None:
        steps = made(longest=1500)
        assert steps.logits(rows(1, blocks=6)) is None
        captured_all(steps)
        assert answer(steps, rows(1, blocks=6)) == [described(rows(1, 6)[0], 6)]


class TestBetweenSteps:
    def test_nothing_is_captured_on_the_first_steps(self) -> None:
        capturing, clock = Recorded(), Clock()
        steps = made(capturing, clock=clock)
        for _ in range(WANTED - 1):
            assert steps.logits(rows(3)) is None
            steps.capture_between()
        assert not capturing.captures
        assert steps.logits(rows(3)) is None
        steps.capture_between()
        assert len(capturing.captures) == 1
        assert answer(steps, rows(3)) == [described(row, 4) for row in rows(3)]

    def test_captures_pause(self) -> None:
        capturing, clock = Recorded(), Clock()
        steps = made(capturing, clock=clock)
        for count in (3, 20):
            for _ in range(WANTED):
                steps.logits(rows(count))
        steps.capture_between()
        steps.capture_between()
        assert len(capturing.captures) == 1
        clock.now += PAUSE_S
        steps.capture_between()
        assert len(capturing.captures) == 2

    def test_a_larger_captured_step_serves_meanwhile(self) -> None:
        steps = made()
        steps.capture_idle()
        assert answer(steps, rows(3)) == [described(row, 4) for row in rows(3)]


class TestLimits:
    def test_a_step_that_cannot_be_captured(self, caplog: pytest.LogCaptureFixture) -> None:
        """It is logged once. Steps are computed without captures from then on."""
        capturing = Recorded(fails=True)
        steps = made(capturing)
        with caplog.at_level(logging.INFO):
            captured_all(steps)
            for _ in range(3 * WANTED):
                assert steps.logits(rows(3)) is None
                steps.capture_between()
            captured_all(steps)
        assert len(capturing.captures) == 1
        assert [record.levelname for record in caplog.records] == ["ERROR"]

    def test_memory_is_bounded(self) -> None:
        capturing = Recorded(a_step=100 << 20)
        steps = made(capturing)
        captured_all(steps)
        captured_all(steps)
        assert len(capturing.captures) == captured.MOST_BYTES // (100 << 20) + 1
        # The largest was captured first, so every number of sequences is served.
        assert answer(steps, rows(3)) == [described(row, 4) for row in rows(3)]


class Lost(Recorded):
    """Fails at the first capture, and loses its device."""

    def __init__(self) -> None:
        super().__init__(fails=True)

    def is_usable(self) -> bool:
        return False


class TestLostCaptures:
    def test_the_capture_is_noted(self) -> None:
        notes: list[str] = []
        steps = made()
        steps.guard(RecordingGuard(notes.append))
        steps.capture_idle()
        assert notes == ["decode steps 256x4", ""]

    def test_the_shape_that_ended_a_replica_is_skipped(self) -> None:
        steps = made()
        steps.guard(RecordingGuard(lost=["decode steps 4x4"]))
        captured_all(steps)
        assert steps.state == RecordedPasses(len(BUCKETS) - 1)
        assert answer(steps, rows(3)) == [described(row, 4) for row in rows(3)], "a larger one"
        for _ in range(2 * WANTED):
            steps.logits(rows(3))
        steps.capture_between()
        assert steps.state == RecordedPasses(len(BUCKETS) - 1)

    def test_after_two_ends_nothing_is_captured(self) -> None:
        capturing = Recorded()
        steps = made(capturing)
        steps.guard(RecordingGuard(lost=["one", "two"]))
        captured_all(steps)
        for _ in range(2 * WANTED):
            assert steps.logits(rows(3)) is None
        steps.capture_between()
        assert not capturing.captures
        assert "ended" in steps.state.problem

    def test_a_lost_device_is_noted_until_the_end(self) -> None:
        notes: list[str] = []
        steps = made(Lost())
        steps.guard(RecordingGuard(notes.append))
        with pytest.raises(DeviceLostError):
            steps.capture_idle()
        assert notes == ["decode steps 256x4"]

    def test_a_long_capture_is_followed_by_a_long_pause(self) -> None:
        clock = Clock()

        class Slow(Recorded):
            def capture(self, step: Callable[[], None]) -> Callable[[], None]:
                clock.now += 0.5
                return super().capture(step)

        capturing = Slow()
        steps = made(capturing, clock=clock)
        for count in (3, 20):
            for _ in range(WANTED):
                steps.logits(rows(count))
        steps.capture_between()
        clock.now += captured.REST * 0.5 - 1
        steps.capture_between()
        assert len(capturing.captures) == 1
        clock.now += 1
        steps.capture_between()
        assert len(capturing.captures) == 2
