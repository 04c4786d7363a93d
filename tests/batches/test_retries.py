"""Which errors of a line are repeated, and how often."""

import json
from typing import Any

import pytest

from stoker.base.errors import InferenceTimeoutError
from stoker.inference.registry import OPERATIONS
from stoker.workloads.batches.line_calls import MOST_TIMEOUTS, Halting, LineCalls
from stoker.workloads.batches.lines import InputLine
from tests.support.rows import batch

PATH = "/v1/embeddings"
LINE = {"custom_id": "a", "method": "POST", "url": PATH, "body": {"model": "m", "input": "x"}}


class Patient(Halting):
    async def sleep(self, seconds: float) -> None:
        return None


class SlowCalls(LineCalls):
    """Calls of which the first ones time out."""

    timeouts = 0
    calls = 0

    async def _call(self, body: bytes) -> bytes:
        self.calls += 1
        if self.calls <= self.timeouts:
            raise InferenceTimeoutError("The model did not answer within 1 s.")
        return b'{"object":"list"}'


@pytest.mark.parametrize("timeouts", [0, MOST_TIMEOUTS - 1, MOST_TIMEOUTS])
async def test_timeouts(timeouts: int) -> None:
    context: Any = None
    calls = SlowCalls(context, batch("acct_1", "dep_1"), OPERATIONS[PATH], Patient())
    calls.timeouts = timeouts
    answer = await calls.answer(InputLine(1, json.dumps(LINE).encode()))
    assert answer
    assert calls.calls == min(timeouts + 1, MOST_TIMEOUTS)
    status = json.loads(answer.text)["response"]["status_code"]
    assert (status, answer.is_error) == ((504, True) if timeouts == MOST_TIMEOUTS else (200, False))
