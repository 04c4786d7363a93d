"""The watch of the event loop: what is held against a step, and what is not."""

import asyncio
import logging
import time
from collections.abc import Iterator
from typing import Any

import pytest
import uvloop

from stoker.telemetry.loop_watch import HELD, STOOD, LoopWatch
from tests.support.server import Server

LIMIT_S = 0.1


def compute(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


async def step(seconds: float) -> None:
    compute(seconds)


async def watched(*seconds: float) -> LoopWatch:
    """The watch, once steps that compute for so long were taken beside each other."""
    watch = LoopWatch(LIMIT_S)
    watch.start()
    try:
        # It has begun, and is between two looks.
        await asyncio.sleep(0.1)
        await asyncio.gather(*(step(one) for one in seconds))
        await asyncio.sleep(0.2)
    finally:
        watch.stop()
    return watch


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def runner(request: pytest.FixtureRequest) -> Iterator[asyncio.Runner]:
    with asyncio.Runner(loop_factory=request.param) as runner:
        yield runner


def values(runner: asyncio.Runner, watch: LoopWatch) -> dict[str, float]:
    families = runner.run(watch.collect())
    return {one.name: one.value for family in families for one in family.samples if not one.labels}


def told(caplog: pytest.LogCaptureFixture, message: str) -> list[Any]:
    return [record for record in caplog.records if record.message == message]


class TestLoopWatch:
    def test_step_that_computes(self, runner: asyncio.Runner, caplog: pytest.LogCaptureFixture):
        watch = runner.run(watched(0.4))
        (record,) = told(caplog, HELD)
        assert record.levelno == logging.WARNING
        assert record.step == "step"
        assert record.processor_ms >= 300
        assert record.stack.endswith("compute")
        found = values(runner, watch)
        assert found["stoker_event_loop_long_steps_total"] == 1
        assert found["stoker_event_loop_longest_step_seconds"] >= 0.3
        assert found["stoker_event_loop_wait_seconds_count"] >= 2
        assert found["stoker_event_loop_wait_seconds_sum"] >= 0.3

    def test_many_short_steps_are_none(
        self, runner: asyncio.Runner, caplog: pytest.LogCaptureFixture
    ):
        watch = runner.run(watched(*[0.02] * 20))
        assert not told(caplog, HELD)
        found = values(runner, watch)
        assert found["stoker_event_loop_long_steps_total"] == 0
        # Whoever came meanwhile has waited all the same.
        assert found["stoker_event_loop_wait_seconds_sum"] >= 0.3

    def test_waiting_is_no_computing(
        self, runner: asyncio.Runner, caplog: pytest.LogCaptureFixture
    ):
        async def waits() -> None:
            watch = LoopWatch(LIMIT_S)
            watch.start()
            await asyncio.sleep(0.1)
            time.sleep(0.4)
            await asyncio.sleep(0.1)
            watch.stop()

        runner.run(waits())
        assert not told(caplog, HELD) + told(caplog, STOOD)


def test_metrics_of_a_server(gateway: Server):
    with gateway.client(gateway.operator_key) as client:
        text = client.get("/metrics").text
    for name in ("wait_seconds_count", "long_steps_total", "longest_step_seconds"):
        assert f"stoker_event_loop_{name} " in text
