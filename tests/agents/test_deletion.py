"""Deleting runs that execute: at any moment, for good, and everywhere."""

import os
import random
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.agents.conftest import MODEL
from tests.agents.support import ASKED, COUNT, ENDED, IDLE_S, WAIT_S, WEATHER, Account
from tests.artifacts.support import eventually
from tests.support.deploying import deploy
from tests.support.server import Server
from tests.support.tracing import Collector

DELETIONS = int(os.environ.get("STOKER_TEST_DELETIONS", "60"))
AT_ONCE = 8


def canary(kind: str, number: int) -> str:
    return f"canary{kind}{number:04d}zq"


@pytest.fixture(scope="module")
def client(traced_server: Server) -> Iterator[httpx.Client]:
    with traced_server.account("erasing") as client:
        yield client


@pytest.fixture(scope="module")
def chat(client: httpx.Client) -> str:
    """The id of the deployment."""
    return deploy(client, MODEL, "chat", engine="torch", readiness="hot")["id"]


@pytest.fixture(scope="module")
def agent(client: httpx.Client, chat: str) -> str:
    assert chat
    body = {"name": "weather", "model": "chat", "tools": [WEATHER]}
    return f"/v1/agent/{client.post('/v1/agent', json=body).raise_for_status().json()['id']}"


def everything(folder: Path) -> Iterator[tuple[Path, bytes]]:
    """All files of a server: database, its log, blobs, caches, logs."""
    for path in [*folder.rglob("*"), folder.parent / f"{folder.name}.log"]:
        if path.is_file() and not path.is_symlink() and path.suffix != ".safetensors":
            yield path, path.read_bytes()


def sealed(folder: Path) -> dict[str, list[bytes]]:
    """What the database has of each run: its key, and the beginnings of what the key has sealed."""
    with sqlite3.connect(f"file:{folder / 'stoker.db'}?mode=ro", uri=True) as rows:
        found = {
            run: [key, asked[:48]]
            for run, key, asked in rows.execute("SELECT id, content_key, asked FROM agent_runs")
        }
        for run, data in rows.execute("SELECT run_id, data FROM agent_run_events"):
            found.setdefault(run, []).append(data[:28])
    return found


def one(account: Account, agent: str, number: int, seen: Mapping[str, Any]) -> tuple[str, bool]:
    """Begin a run, bring it as far as chance will have it, delete it; its id and whether it had
    asked for its tool.

    Half of them are let come so far, however slow the machine is, and were seen by then.
    """
    client, chance = account.client, random.Random(number)
    place = account.run(agent, f"What is the weather in Paris? {canary('prompt', number)}")
    run = place.rpartition("/")[2]
    has_asked = False
    if chance.random() < 0.5:
        found = account.until(place, "requires_action", *ENDED)
        assert eventually(lambda: run in seen)
        if has_asked := found["status"] == "requires_action":
            account.answer(place, f'{{"condition": "{canary("tool", number)}"}}')
    time.sleep(chance.uniform(0, 0.8))
    gone = client.delete(place)
    assert gone.status_code == 200, gone.text
    assert gone.json() == {"id": run, "object": "agent.run.deleted", "deleted": True}
    for answer in (client.get(place), client.get(f"{place}/events"), client.delete(place)):
        assert answer.status_code == 404
        assert answer.json()["error"]["message"] == "Run not found"
    return run, has_asked


@pytest.mark.one_machine
@pytest.mark.fault("e4")
def test_deleting_while_executing(
    traced_server: Server, client: httpx.Client, agent: str, chat: str
) -> None:
    seen: dict[str, list[bytes]] = {}
    busy = threading.Event()

    def look() -> None:
        while not busy.wait(0.05):
            for run, parts in sealed(traced_server.data_dir).items():
                seen.setdefault(run, []).extend(parts)

    looking = threading.Thread(target=look)
    looking.start()
    account = Account(client, chat)
    try:
        with ThreadPoolExecutor(AT_ONCE) as threads:
            ended = dict(threads.map(lambda at: one(account, agent, at, seen), range(DELETIONS)))
    finally:
        busy.set()
        looking.join()
    account.wait_idle(WAIT_S)

    assert sum(ended.values()) >= DELETIONS / 20, "hardly any came so far"
    assert len(seen.keys() & ended) > DELETIONS / 4, "hardly any was seen while it was there"
    assert not sealed(traced_server.data_dir).keys() & ended
    words = [b"canaryprompt", b"canarytool"]
    parts = {part for some in seen.values() for part in some}
    for path, content in everything(traced_server.data_dir):
        assert [word for word in words if word in content] == [], path
        assert [part for part in parts if part in content] == [], path


def test_the_engine_is_idle_after_each(client: httpx.Client, agent: str, chat: str) -> None:
    """Nobody else asks it for anything: it is this run that it stops working on."""
    account, chance = Account(client, chat), random.Random(0)
    at_work = 0
    with account.slowed():
        for _ in range(DELETIONS // 4):
            run = account.run(agent, COUNT)
            # Some are deleted before they have come to the engine.
            if chance.random() < 0.75:
                assert eventually(lambda: account.outstanding() > 0)
            time.sleep(chance.uniform(0, 0.3))
            at_work += account.outstanding() > 0
            client.delete(run).raise_for_status()
            account.wait_idle(IDLE_S)
    assert at_work > DELETIONS // 8, "it was hardly ever at work"


@pytest.mark.one_machine
def test_no_table_keeps_what_was_said(
    traced_server: Server, client: httpx.Client, agent: str
) -> None:
    """Nor the answers that `Idempotency-Key` remembers; what was used is still on the bill."""
    word = canary("again", 1)
    asked = {"input": f"What is the weather in Paris? {word}"}
    key = {"idempotency-key": word}
    run = client.post(f"{agent}/runs", json=asked, headers=key).raise_for_status().json()
    again = client.post(f"{agent}/runs", json=asked, headers=key)
    assert again.json()["id"] == run["id"]
    with sqlite3.connect(traced_server.data_dir / "stoker.db") as rows:
        before = mentions(rows, run["id"])
        assert {"agent_runs", "agent_run_events", "idempotency_records"} <= before
    client.delete(f"{agent}/runs/{run['id']}").raise_for_status()
    with sqlite3.connect(traced_server.data_dir / "stoker.db") as rows:
        assert mentions(rows, run["id"]) == set()
    usage = client.get("/v1/usage").raise_for_status().json()
    assert usage["total"] if "total" in usage else usage["data"]
    # The key is free again: whoever repeats the request asks for something new.
    anew = client.post(f"{agent}/runs", json=asked, headers=key).raise_for_status().json()
    assert anew["id"] != run["id"]


def mentions(rows: sqlite3.Connection, run_id: str) -> set[str]:
    """The tables that have a row with an id in it."""
    found: set[str] = set()
    tables = [name for (name,) in rows.execute("SELECT name FROM sqlite_master WHERE type='table'")]
    for table in tables:
        for row in rows.execute(f'SELECT * FROM "{table}"'):
            if any(isinstance(value, str) and run_id in value for value in row):
                found.add(table)
    return found


def test_a_whole_run_leaves_nothing(
    traced_server: Server, client: httpx.Client, agent: str, chat: str, collector: Collector
) -> None:
    """Of prompt, tool's output and answer: in no file, log, metric or trace."""
    account = Account(client, chat)
    prompt, tool, answer = canary("prompt", 2), canary("tool", 2), "21 degrees and hazy"
    run = account.run(agent, f"{ASKED} {prompt}")
    account.answer(run, f'{{"temperature": 21, "condition": "hazy {tool}"}}')
    assert answer in account.until(run)["output"]
    client.delete(run).raise_for_status()
    route = "DELETE /v1/agent/{agent_id}/runs/{run_id}"
    deadline = time.monotonic() + 20
    while route.encode() not in (sent := b"".join(collector.bodies)):
        assert time.monotonic() < deadline, "its end was not traced"
        time.sleep(0.02)
    metrics = (
        traced_server.client(traced_server.operator_key).get("/metrics").raise_for_status().content
    )
    places = [*everything(traced_server.data_dir), ("traces", sent), ("metrics", metrics)]
    for word in (prompt, tool, answer):
        assert [place for place, content in places if word.encode() in content] == [], word


def test_an_agent_takes_its_runs_with_it(client: httpx.Client, chat: str) -> None:
    body: dict[str, Any] = {"name": "short-lived", "model": "chat", "tools": [WEATHER]}
    agent = f"/v1/agent/{client.post('/v1/agent', json=body).raise_for_status().json()['id']}"
    runs = [
        client.post(f"{agent}/runs", json={"input": "hello"}).raise_for_status().json()["id"]
        for _ in range(5)
    ]
    gone = client.delete(agent)
    assert gone.json() == {
        "id": agent.rpartition("/")[2],
        "object": "agent.deleted",
        "deleted": True,
    }
    assert client.get(agent).status_code == 404
    assert [client.get(f"{agent}/runs/{run}").status_code for run in runs] == [404] * 5
    Account(client, chat).wait_idle(WAIT_S)
