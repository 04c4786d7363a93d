"""The event loop's watch: steps that it reports, and steps that it does not."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import uvloop

from stoker.server.telemetry import loop_watch
from stoker.server.telemetry.loop_watch import HELD, STOOD, LoopWatch
from tests.support.server import Server

LIMIT_S = 0.1
PATIENCE_S = 30
"""Timeout in seconds. On a busy machine the watch may have to wait for the processor."""


class Looking(LoopWatch):
    """Counts its checks of the event loop."""

    looks = 0

    def _look(self, *arguments: Any) -> Any:
        self.looks += 1
        return super()._look(*arguments)


def compute(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


async def step(watch: Looking) -> None:
    """Runs a long step. The watch checks it before its last 0.3 seconds."""
    deadline = time.monotonic() + PATIENCE_S
    compute(0.1)
    while not watch.looks and time.monotonic() < deadline:
        compute(0.01)
    compute(0.3)


async def short_step() -> None:
    compute(0.02)


async def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_so() and time.monotonic() < deadline:
        await asyncio.sleep(0.01)


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def runner(request: pytest.FixtureRequest) -> Iterator[asyncio.Runner]:
    with asyncio.Runner(loop_factory=request.param) as runner:
        yield runner


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """Sets the log level, because earlier tests may have raised it."""
    caplog.set_level(logging.WARNING, loop_watch.__name__)
    return caplog


def told(log: pytest.LogCaptureFixture, message: str) -> list[Any]:
    return [record for record in log.records if record.getMessage() == message]


async def values(watch: LoopWatch) -> dict[str, float]:
    families = await watch.collect()
    return {
        sample.name: sample.value
        for family in families
        for sample in family.samples
        if not sample.labels
    }


class TestLoopWatch:
    def test_step_that_computes(
        self, runner: asyncio.Runner, log: pytest.LogCaptureFixture
    ) -> None:
        async def computes() -> dict[str, float]:
            watch = Looking(LIMIT_S)
            watch.start()
            try:
                # The watch has started and is between two checks.
                await asyncio.sleep(0.1)
                await asyncio.create_task(step(watch))
                await until(lambda: bool(told(log, HELD)))
                return {"looks": watch.looks, **await values(watch)}
            finally:
                watch.stop()

        metrics = runner.run(computes())
        assert metrics["stoker_event_loop_longest_step_seconds"] >= 0.3, metrics
        assert metrics["stoker_event_loop_long_steps_total"] == 1
        assert metrics["stoker_event_loop_wait_seconds_count"] >= 2
        assert metrics["stoker_event_loop_wait_seconds_sum"] >= 0.3
        (record,) = told(log, HELD)
        assert record.levelno == logging.WARNING
        assert (record.loop, record.step) == ("server", "step")
        assert record.processor_ms >= 300
        assert record.stack.endswith("compute")

    def test_many_short_steps_are_none(
        self, runner: asyncio.Runner, log: pytest.LogCaptureFixture
    ) -> None:
        async def computes() -> dict[str, float]:
            watch = Looking(LIMIT_S)
            watch.start()
            try:
                await asyncio.sleep(0.1)
                metrics: dict[str, float] = {}
                deadline = time.monotonic() + PATIENCE_S
                while (
                    metrics.get("stoker_event_loop_wait_seconds_sum", 0) < 0.3
                    and time.monotonic() < deadline
                ):
                    await asyncio.gather(*(short_step() for _ in range(20)))
                    await asyncio.sleep(0.2)
                    metrics = await values(watch)
                return metrics
            finally:
                watch.stop()

        metrics = runner.run(computes())
        # Tasks that arrived in the meantime waited nevertheless.
        assert metrics["stoker_event_loop_wait_seconds_sum"] >= 0.3
        assert metrics["stoker_event_loop_long_steps_total"] == 0
        assert not told(log, HELD)

    def test_waiting_is_no_computing(
        self, runner: asyncio.Runner, log: pytest.LogCaptureFixture
    ) -> None:
        async def waits() -> int:
            watch = Looking(LIMIT_S)
            watch.start()
            try:
                await asyncio.sleep(0.1)
                time.sleep(1)
                await asyncio.sleep(0.1)
                return watch.looks
            finally:
                watch.stop()

        runner.run(waits())
        assert not told(log, HELD) + told(log, STOOD)


def test_metrics_of_a_server(gateway: Server):
    with gateway.client(gateway.operator_key) as client:
        text = client.get("/metrics").text
    for name in ("wait_seconds_count", "long_steps_total", "longest_step_seconds"):
        assert f"stoker_event_loop_{name} " in text
