"""Watches the event loop from a separate thread: how long one step blocks it, and which code does.

Neither uvloop nor a task written in C reports how long a callback took. So the thread sends the
loop a beat, twenty times a second while the loop computes. Until the loop answers, the thread
samples the stack and the processor time of the loop's thread. Processor time separates a blocked
loop from a machine that is busy with other work. While the loop computes little, the kernel wakes
the thread as soon as the loop has used some processor time.
"""

import asyncio
import logging
import math
import sys
import threading
import time
from collections.abc import Iterable
from types import FrameType

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from stoker.server.telemetry.histogram import Histogram
from stoker.server.telemetry.processor_alarm import ProcessorAlarm

log = logging.getLogger(__name__)

HELD = "the event loop was held"
"""Log message for a step that computed for too long. Tests search for it."""
STOOD = "the event loop stood still"
"""Log message for a step that waited for something, such as a disk."""

BEAT_S = 0.05
QUIET_BEAT_S = 0.5
"""Seconds between beats of an almost idle loop. Waking such a loop costs more than its other
work.
"""
_QUIET_S = 0.005
"""Processor seconds per `BEAT_S`. Below this value no long step can be in progress."""
_ALARM_S = 0.02
"""Processor seconds of the loop after which the kernel wakes the thread."""
LOOK_S = 0.02
STOOD_LIMIT_S = 2.0
WAIT_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_MOST_FRAMES = 40


class _ObservedStep:
    """Observations of one step while it ran."""

    def __init__(self, base: FrameType | None) -> None:
        self.base = base
        self.processor_s = 0.0
        self.seconds = 0.0
        self.stack: list[str] = []

    @property
    def name(self) -> str:
        return self.base.f_code.co_qualname if self.base else "not seen"


class LoopWatch:
    def __init__(self, limit_s: float, name: str = "server") -> None:
        """
        Args:
            limit_s: processor time in seconds above which a step is logged.
            name: name of the loop in log entries.
        """
        self._limit_s = limit_s
        self._name = name
        self._waits = Histogram(WAIT_SECONDS)
        self._long_steps = 0
        self._longest_s = 0.0
        self._stopped = threading.Event()
        self._answered = threading.Event()
        self._answered_at = self._answered_processor_s = 0.0
        self._depth = 0
        """Number of the loop's own stack frames below a step."""

    def start(self) -> None:
        """Watches the running loop until `stop`. Must be called in the loop's own thread."""
        thread = threading.get_ident()
        clock = time.pthread_getcpuclockid(thread)
        loop = asyncio.get_running_loop()
        loop.call_soon(self._measure)
        watching = threading.Thread(
            target=self._watch, args=(loop, thread, clock), name="loop-watch", daemon=True
        )
        watching.start()

    def stop(self) -> None:
        self._stopped.set()
        self._answered.set()

    async def collect(self) -> Iterable[Metric]:
        """Returns the metrics of the loop."""
        waits = HistogramMetricFamily(
            "stoker_event_loop_wait_seconds",
            "Delay of the event loop, sampled 20 times a second under load.",
        )
        waits.add_metric([], self._waits.buckets, self._waits.total)
        long_steps = CounterMetricFamily(
            "stoker_event_loop_long_steps",
            "Event loop steps that took more processor time than `STOKER_LOOP_STEP_LIMIT_MS`.",
        )
        long_steps.add_metric([], self._long_steps)
        longest = GaugeMetricFamily(
            "stoker_event_loop_longest_step_seconds",
            "Processor time of the longest observed step of the event loop.",
        )
        longest.add_metric([], self._longest_s)
        return [waits, long_steps, longest]

    # --- in the loop's thread ---

    def _measure(self) -> None:
        self._depth = len(_frames(sys._getframe())) - 1  # pyright: ignore[reportPrivateUsage]

    def _answer(self) -> None:
        self._answered_at = time.monotonic()
        self._answered_processor_s = time.clock_gettime(time.CLOCK_THREAD_CPUTIME_ID)
        self._answered.set()

    # --- in the watching thread ---

    def _watch(self, loop: asyncio.AbstractEventLoop, thread: int, clock: int) -> None:
        try:
            alarm = ProcessorAlarm(clock, _ALARM_S)
        except OSError:
            # The thread looks at the processor time more often instead.
            alarm = None
        try:
            self._watch_with(loop, thread, clock, alarm)
        finally:
            if alarm:
                alarm.close()

    def _watch_with(
        self,
        loop: asyncio.AbstractEventLoop,
        thread: int,
        clock: int,
        alarm: ProcessorAlarm | None,
    ) -> None:
        before_s, beat_at = time.clock_gettime(clock), -math.inf
        while True:
            # Waiting for an event would use more of a core.
            time.sleep(BEAT_S)
            if alarm and time.clock_gettime(clock) - before_s < _QUIET_S:
                alarm.wait(max(0.0, beat_at + QUIET_BEAT_S - time.monotonic()))
            if self._stopped.is_set():
                return
            asked_at, processor_s = time.monotonic(), time.clock_gettime(clock)
            is_quiet = processor_s - before_s < _QUIET_S
            before_s = processor_s
            if is_quiet and asked_at - beat_at < QUIET_BEAT_S:
                continue
            beat_at = asked_at
            self._answered.clear()
            try:
                loop.call_soon_threadsafe(self._answer)
            except RuntimeError:
                # The loop is closed.
                return
            steps: list[_ObservedStep] = []
            seen_at, seen_processor_s = asked_at, processor_s
            while not self._answered.wait(LOOK_S):
                step = self._look(thread, steps)
                now, processor_s = time.monotonic(), time.clock_gettime(clock)
                step.seconds += now - seen_at
                step.processor_s += processor_s - seen_processor_s
                seen_at, seen_processor_s = now, processor_s
            if self._stopped.is_set():
                return
            self._waits.observe(self._answered_at - asked_at)
            last = steps[-1] if steps else _ObservedStep(None)
            last.seconds += max(0.0, self._answered_at - seen_at)
            last.processor_s += max(0.0, self._answered_processor_s - seen_processor_s)
            for step in steps or [last]:
                self._judge(step)

    def _look(self, thread: int, steps: list[_ObservedStep]) -> _ObservedStep:
        """Samples the stack and returns the current step. This is the step of the last sample or a
        new one.
        """
        innermost = sys._current_frames().get(thread)  # pyright: ignore[reportPrivateUsage]
        frames = _frames(innermost)[self._depth :]
        base = frames[0] if frames else None
        if not steps or steps[-1].base is not base:
            steps.append(_ObservedStep(base))
        step = steps[-1]
        # Keeps the latest stack, because the first sampled function may be about to return.
        step.stack = [_place(frame) for frame in frames[-_MOST_FRAMES:]]
        return step

    def _judge(self, step: _ObservedStep) -> None:
        self._longest_s = max(self._longest_s, step.processor_s)
        if step.processor_s > self._limit_s:
            self._long_steps += 1
            self._warn(HELD, step)
        elif step.seconds > STOOD_LIMIT_S:
            self._warn(STOOD, step)

    def _warn(self, message: str, step: _ObservedStep) -> None:
        log.warning(
            message,
            extra={
                "loop": self._name,
                "step": step.name,
                "processor_ms": round(step.processor_s * 1000),
                "ms": round(step.seconds * 1000),
                "stack": " > ".join(step.stack),
            },
        )


def _frames(innermost: FrameType | None) -> list[FrameType]:
    """Returns the stack frames, outermost first."""
    frames: list[FrameType] = []
    frame = innermost
    while frame:
        frames.append(frame)
        frame = frame.f_back
    return frames[::-1]


def _place(frame: FrameType) -> str:
    code = frame.f_code
    file = "/".join(code.co_filename.split("/")[-2:])
    return f"{file}:{frame.f_lineno} {code.co_name}"
