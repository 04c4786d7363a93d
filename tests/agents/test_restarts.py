"""Servers are killed or stopped while they work on runs, and restarted."""

import json
import os
import signal
import time

import pytest

from tests.agents.support import (
    ANSWERED,
    ASKED,
    COUNT,
    WAIT_S,
    WEATHER,
    Account,
    begun,
    check_resumed,
    data,
    mcp,
)
from tests.support.deploying import deployment, wait_for
from tests.support.server import Server
from tools.stand_ins.tool_servers import Tools

TOKENS = 600


@pytest.fixture(scope="module")
def counting(account: Account) -> str:
    return account.agent(config={"max_tokens": TOKENS})


@pytest.fixture(scope="module")
def counted(account: Account) -> str:
    """Returns the model's greedy answer to the counting prompt."""
    messages = [{"role": "user", "content": COUNT}]
    same = account.post(
        "/v1/chat/completions", 200, model="chat", messages=messages, max_tokens=TOKENS
    )
    return same["choices"][0]["message"]["content"]


def again(server: Server, account: Account) -> None:
    server.restart()
    server.wait_ready()
    wait_for(account.client, account.deployment_id, "ready")


@pytest.mark.fault("b4")
def test_killed(
    agent_server: Server, account: Account, weather_tools: Tools, counted: str, counting: str
) -> None:
    waiting = account.run(account.agent(tools=[WEATHER]))
    before = account.until(waiting, "requires_action"), account.events(waiting)
    weather_tools.release.clear()
    called = len(weather_tools.cities("slow"))
    tool = account.run(account.agent(tools=[mcp(weather_tools.slow_url)]))
    begun(account, tool, "tool_call.started")
    with account.slowed() as halt:
        speaking = account.run(counting, COUNT)
        streamed = begun(account, speaking, "message.delta")
        halt()
        agent_server.kill()
    weather_tools.release.set()
    again(agent_server, account)

    check_resumed(account, speaking, streamed, counted)

    account.until(tool)
    events = account.events(tool)
    started, completed = (data(events, f"tool_call.{kind}") for kind in ("started", "completed"))
    assert completed[0]["is_interrupted"] is completed[0]["is_error"] is True
    assert completed[0]["tool_call_id"] == started[0]["tool_call_id"]
    ids = [item["tool_call_id"] for item in started]
    assert len(ids) == len(set(ids)) == len(weather_tools.cities("slow")) - called
    # The model was notified of the interruption: its second step's prompt contains it.
    first, second = data(events, "message.completed")[:2]
    (listed,) = data(events, "tools.listed")
    functions = [
        {key: tool[key] for key in ("name", "description", "parameters")}
        for tool in listed["tools"]
    ]
    messages = [
        {"role": "user", "content": ASKED},
        {"role": "assistant", **first["message"]},
        {"role": "tool", "tool_call_id": ids[0], "content": completed[0]["output"]},
    ]
    same = account.post(
        "/v1/chat/completions",
        200,
        model="chat",
        messages=messages,
        tools=[{"type": "function", "function": item} for item in functions],
    )
    assert second["usage"]["prompt_tokens"] == same["usage"]["prompt_tokens"]
    assert "interrupted" in completed[0]["output"]

    assert (account.get(waiting), account.events(waiting)) == before
    account.answer(waiting, json.dumps({"temperature": 21, "condition": "sunny"}))
    assert account.until(waiting)["output"] == ANSWERED


@pytest.mark.fault("a2")
def test_worker_lost(account: Account, counted: str, counting: str) -> None:
    with account.slowed():
        run = account.run(counting, COUNT)
        streamed = begun(account, run, "message.delta")
        (worker,) = deployment(account.client, account.deployment_id)["workers"]
        os.kill(worker["pid"], signal.SIGKILL)
    check_resumed(account, run, streamed, counted)


@pytest.mark.fault("a2")
def test_stream_of_a_lost_worker_ends_with_an_error(account: Account) -> None:
    body = {
        "model": "chat",
        "messages": [{"role": "user", "content": COUNT}],
        "max_tokens": TOKENS,
        "stream": True,
    }
    path = "/v1/chat/completions"
    with account.slowed(), account.client.stream("POST", path, json=body) as response:
        lines = (line for line in response.iter_lines() if line)
        chunks = [json.loads(next(lines).removeprefix("data: ")) for _ in range(3)]
        (worker,) = deployment(account.client, account.deployment_id)["workers"]
        os.kill(worker["pid"], signal.SIGKILL)
        *_, last = lines
    assert response.status_code == 200
    assert all(chunk["choices"] for chunk in chunks)
    # The error keeps a client from taking the text for a complete answer.
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "worker_lost"
    wait_for(account.client, account.deployment_id, "ready")
    whole = account.post(path, 200, **{**body, "stream": False, "max_tokens": 4})
    assert whole["usage"]["completion_tokens"] == 4


def test_stopped(agent_server: Server, account: Account, counted: str, counting: str) -> None:
    waiting = account.run(account.agent(tools=[WEATHER]))
    stream = account.stream(waiting)
    before = [next(stream)]
    while before[-1]["type"] != "run.requires_action":
        before.append(next(stream))
    with account.slowed() as halt:
        run = account.run(counting, COUNT)
        streamed = begun(account, run, "message.delta")
        halt()
        began = time.monotonic()
        agent_server.process.send_signal(signal.SIGTERM)
        assert [*stream] == []
    assert agent_server.process.wait(WAIT_S) == 0
    assert time.monotonic() - began < 30, "whoever follows a run holds up the end"
    again(agent_server, account)
    check_resumed(account, run, streamed, counted)
    account.answer(waiting)
    assert account.until(waiting)["output"] == ANSWERED
    rest = account.stream(waiting, before[-1]["id"])
    assert [*before, *rest] == account.events(waiting)
