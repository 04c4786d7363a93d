"""The vLLM process below a replica: its end, and the end of the replica."""

import time
from typing import Any

import httpx
import openai
import psutil
import pytest

from tests.openai.conftest import ENGINES
from tests.openai.test_chat import COUNT, FRANCE, PARIS, user
from tests.openai.test_disconnects import worker

pytestmark = pytest.mark.skipif(
    "vllm" not in ENGINES, reason="'make test-vllm' runs it, with an environment that has vLLM"
)
START_S = 120


def child_of(account: httpx.Client) -> psutil.Process:
    (child,) = psutil.Process(worker(account, "vllm")["pid"]).children()
    return child


def asked(sdk: openai.OpenAI) -> Any:
    """Returns the answer, from another replica if this one has ended."""
    deadline = time.monotonic() + START_S
    while True:
        try:
            completion = sdk.chat.completions.create(model="vllm", messages=user(FRANCE))
        except openai.APIStatusError as error:
            # The replica's end is not noticed yet, or the other one is starting.
            assert error.status_code == 503, error
            assert time.monotonic() < deadline
            time.sleep(0.5)
        else:
            return completion.choices[0].message.content


class TestEnds:
    def test_both_count_as_the_workers_memory(self, account: httpx.Client, sdk: openai.OpenAI):
        assert asked(sdk) == PARIS
        child = child_of(account)
        assert child.memory_full_info().pss > 300 << 20
        time.sleep(6)
        assert worker(account, "vllm")["memory_bytes"] > child.memory_full_info().pss

    def test_of_the_child(self, account: httpx.Client, sdk: openai.OpenAI):
        before = worker(account, "vllm")["id"]
        stream = sdk.chat.completions.create(
            model="vllm",
            messages=user(COUNT),
            stream=True,
            max_tokens=900,
            extra_body={"ignore_eos": True},
        )
        parts = iter(stream)
        next(parts)
        child_of(account).kill()
        with pytest.raises(openai.APIError, match="The model failed while it wrote this answer"):
            for _ in parts:
                pass
        assert asked(sdk) == PARIS
        assert worker(account, "vllm")["id"] != before

    def test_of_the_replica(self, account: httpx.Client, sdk: openai.OpenAI):
        assert asked(sdk) == PARIS
        child = child_of(account)
        psutil.Process(worker(account, "vllm")["pid"]).kill()
        deadline = time.monotonic() + 30
        while child.is_running() and child.status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert asked(sdk) == PARIS
