"""Clients that disconnect at any moment, and clients that read slowly."""

import asyncio
import json
import random
import time
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from tests.openai.conftest import ANY
from tests.openai.test_chat import COUNT, FRANCE, PARIS, user
from tests.support.raw import connect
from tests.support.scraping import scrape
from tests.support.server import Server

DISCONNECTS = 500
AT_ONCE = 25
WARMING = {"vllm": 500}
"""Number of first requests per engine that fill the allocators' pools. The default is 100.

vLLM needs more because it has more threads.
"""
IDLE_S = 30
GROWTH_BYTES = 48 << 20
"""Maximum growth of memory in bytes.

Allocators keep some memory. A leak of 500 requests would be far larger.
"""


def worker(account: httpx.Client, model: str) -> dict[str, Any]:
    deployments = account.get("/v1/deployments").raise_for_status().json()["data"]
    (deployment,) = [row for row in deployments if row["model"] == model]
    return deployment["workers"][0]


def wait_idle(account: httpx.Client, model: str) -> dict[str, Any]:
    """Waits until a heartbeat reports the worker as idle, and returns the worker."""
    deadline = time.monotonic() + IDLE_S
    while True:
        current = worker(account, model)
        if current["outstanding"] == 0 and current["cache_usage"] == 0:
            return current
        assert time.monotonic() < deadline, current
        time.sleep(0.2)


def weighed(account: httpx.Client, model: str) -> int:
    """Returns the memory of the idle worker in bytes, measured again.

    Heartbeats measure it every few seconds.
    """
    wait_idle(account, model)
    time.sleep(6)
    return wait_idle(account, model)["memory_bytes"]


async def leave(client: httpx.AsyncClient, model: str, rng: random.Random) -> None:
    """Requests a long answer and disconnects at a random moment."""
    body = {
        "model": model,
        "messages": user(COUNT),
        "stream": rng.random() < 0.5,
        "n": rng.choice((1, 1, 3)),
        "max_tokens": 900,
        "ignore_eos": True,
    }

    async def run() -> None:
        async with client.stream("POST", "/v1/chat/completions", json=body) as response:
            async for _ in response.aiter_bytes():
                pass

    try:
        await asyncio.wait_for(run(), timeout=rng.uniform(0.0, 0.15))
    except (TimeoutError, httpx.TransportError):
        return


async def leave_often(server: Server, key: str, model: str, count: int) -> None:
    rng = random.Random(4)
    limits = httpx.Limits(max_connections=AT_ONCE)
    async with httpx.AsyncClient(
        base_url=server.base_url,
        headers={"authorization": f"Bearer {key}"},
        limits=limits,
        timeout=60,
        verify=False,
    ) as client:
        for _ in range(count // AT_ONCE):
            await asyncio.gather(*(leave(client, model, rng) for _ in range(AT_ONCE)))


@pytest.mark.fault("d3")
class TestDisconnects:
    def test_nothing_is_left(
        self, server: Server, account: httpx.Client, sdk: openai.OpenAI, key: str, model: str
    ):
        asyncio.run(leave_often(server, key, model, WARMING.get(model, 100)))
        before = weighed(account, model)
        asyncio.run(leave_often(server, key, model, DISCONNECTS))
        after = weighed(account, model)
        assert after - before < GROWTH_BYTES
        completion = sdk.chat.completions.create(model=model, messages=user(FRANCE))
        assert completion.choices[0].message.content == PARIS

    @pytest.mark.one_machine
    def test_the_slot_is_free_at_once(self, account: httpx.Client, model: str):
        body = {
            "model": model,
            "messages": user(COUNT),
            "stream": True,
            "max_tokens": 900,
            "ignore_eos": True,
        }
        with account.stream("POST", "/v1/chat/completions", json=body) as response:
            pieces = response.iter_bytes()
            next(pieces)
            assert worker(account, model)["outstanding"] == 1
        disconnected_at = time.monotonic()
        while worker(account, model)["outstanding"]:
            assert time.monotonic() - disconnected_at < 15
        wait_idle(account, model)


class TestSlowReaders:
    def test_do_not_slow_others(self, account: httpx.Client, sdk: openai.OpenAI, model: str):
        body = {
            "model": model,
            "messages": user(COUNT),
            "stream": True,
            "n": 16,
            "max_tokens": 900,
            "ignore_eos": True,
        }
        with account.stream("POST", "/v1/chat/completions", json=body) as response:
            pieces = response.iter_raw(chunk_size=64)
            next(pieces)
            # This client stops reading while another request is served from the first token to the
            # last.
            completion = sdk.chat.completions.create(model=model, messages=user(FRANCE))
            assert completion.choices[0].message.content == PARIS
        wait_idle(account, model)


@pytest.fixture
def narrow(account: httpx.Client) -> Iterator[None]:
    """Limits the deployment to an admission queue of one call."""
    deployments = account.get("/v1/deployments").raise_for_status().json()["data"]
    (deployment,) = [row for row in deployments if row["model"] == ANY]
    path = f"/v1/deployments/{deployment['id']}"
    account.patch(path, json={"max_queue": 1}).raise_for_status()
    yield
    account.patch(path, json={"max_queue": 256}).raise_for_status()


@pytest.mark.fault("d2")
class TestReaderThatNeverReads:
    @pytest.mark.usefixtures("narrow")
    def test_m9_its_place_is_freed(self, server: Server, account: httpx.Client):
        body = {"model": ANY, "messages": user(COUNT), "stream": True, "ignore_eos": True}
        # The answer has megabytes, more than any kernel's buffers hold.
        long = {**body, "n": 16, "logprobs": True, "top_logprobs": 20, "max_tokens": 900}
        content = json.dumps(long).encode()
        head = "POST /v1/chat/completions HTTP/1.1\r\nhost: test\r\n"
        head += f"authorization: {account.headers['authorization']}\r\n"
        head += f"content-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
        with server.client(server.operator_key) as operator:
            before = cut(operator)
            with connect(server, receive_bytes=4096) as connection:
                connection.sendall(head.encode() + content)
                assert connection.recv(15) == b"HTTP/1.1 200 OK"
                assert account.post("/v1/chat/completions", json=body).status_code == 429
                deadline = time.monotonic() + IDLE_S
                while account.post("/v1/chat/completions", json=body).status_code == 429:
                    assert time.monotonic() < deadline
                    time.sleep(0.2)
                assert cut(operator) == before + 1
        wait_idle(account, ANY)


def cut(operator: httpx.Client) -> float:
    return scrape(operator).get("stoker_connections_ended_total", reason="answer_timeout")


class TestRevokedKey:
    @pytest.mark.fault("e5")
    def test_what_has_begun_ends_where_it_began(self, server: Server, account: httpx.Client):
        made = account.post("/v1/api-keys", json={"scope": "account"}).raise_for_status().json()
        body = {
            "model": ANY,
            "messages": user(COUNT),
            "max_tokens": 900,
            "ignore_eos": True,
        }
        path = "/v1/chat/completions"
        with (
            server.client(made["key"]) as client,
            client.stream("POST", path, json={**body, "stream": True}) as response,
        ):
            lines = (line for line in response.iter_lines() if line)
            next(lines)
            account.delete(f"/v1/api-keys/{made['id']}").raise_for_status()
            refused = client.post(path, json={**body, "max_tokens": 1})
            *_, final, last = lines
        assert refused.status_code == 401
        assert last == "data: [DONE]"
        assert json.loads(final.removeprefix("data: "))["choices"][0]["finish_reason"] == "length"
        wait_idle(account, ANY)


class TestQueueLimit:
    @pytest.mark.usefixtures("narrow")
    def test_says_when_to_come_again(self, account: httpx.Client):
        body = {"model": ANY, "messages": user(COUNT), "stream": True, "ignore_eos": True}
        with account.stream("POST", "/v1/chat/completions", json=body) as response:
            pieces = response.iter_bytes()
            next(pieces)
            refused = account.post("/v1/chat/completions", json=body)
        assert refused.status_code == 429, refused.text
        assert int(refused.headers["retry-after"]) >= 1
        assert json.loads(refused.text)["error"]["code"] == "queue_full"
