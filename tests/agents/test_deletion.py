"""Runs are deleted during execution, at any moment, permanently and from all storage."""

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
    """Deploys the chat model and returns the deployment's id."""
    return deploy(client, MODEL, "chat", engine="torch", readiness="hot")["id"]


@pytest.fixture(scope="module")
def agent(client: httpx.Client, chat: str) -> str:
    assert chat
    body = {"name": "weather", "model": "chat", "tools": [WEATHER]}
    return f"/v1/agent/{client.post('/v1/agent', json=body).raise_for_status().json()['id']}"


def everything(folder: Path) -> Iterator[tuple[Path, bytes]]:
    """Yields all files of a server: database, its log, blobs, caches, logs."""
    for path in [*folder.rglob("*"), folder.parent / f"{folder.name}.log"]:
        if path.is_file() and not path.is_symlink() and path.suffix != ".safetensors":
            yield path, path.read_bytes()


def sealed(folder: Path) -> dict[str, list[bytes]]:
    """Reads the key of each run from the database, with the first bytes of all data that the key
    has sealed.
    """
    with sqlite3.connect(f"file:{folder / 'stoker.db'}?mode=ro", uri=True) as rows:
        parts = {
            run: [key, content[:48]]
            for run, key, content in rows.execute("SELECT id, content_key, asked FROM agent_runs")
        }
        for run, data in rows.execute("SELECT run_id, data FROM agent_run_events"):
            parts.setdefault(run, []).append(data[:28])
    return parts


def one(account: Account, agent: str, number: int, seen: Mapping[str, Any]) -> tuple[str, bool]:
    """Starts a run and deletes it at a random moment. Returns the run's id and whether it requested
    its tool.

    Half of the runs first wait for the tool request, even on a slow machine, and until `seen`
    contains them.
    """
    client, chance = account.client, random.Random(number)
    place = account.run(agent, f"What is the weather in Paris? {canary('prompt', number)}")
    run = place.rpartition("/")[2]
    has_asked = False
    if chance.random() < 0.5:
        current = account.until(place, "requires_action", *ENDED)
        assert eventually(lambda: run in seen)
        if has_asked := current["status"] == "requires_action":
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
    observed: dict[str, list[bytes]] = {}
    busy = threading.Event()

    def look() -> None:
        while not busy.wait(0.05):
            for run, parts in sealed(traced_server.data_dir).items():
                observed.setdefault(run, []).extend(parts)

    looking = threading.Thread(target=look)
    looking.start()
    account = Account(client, chat)
    try:
        with ThreadPoolExecutor(AT_ONCE) as threads:
            ended = dict(
                threads.map(lambda at: one(account, agent, at, observed), range(DELETIONS))
            )
    finally:
        busy.set()
        looking.join()
    account.wait_idle(WAIT_S)

    assert sum(ended.values()) >= DELETIONS / 20, "hardly any came so far"
    assert len(observed.keys() & ended) > DELETIONS / 4, "hardly any was seen while it was there"
    assert not sealed(traced_server.data_dir).keys() & ended
    words = [b"canaryprompt", b"canarytool"]
    parts = {part for some in observed.values() for part in some}
    for path, content in everything(traced_server.data_dir):
        assert [word for word in words if word in content] == [], path
        assert [part for part in parts if part in content] == [], path


def test_the_engine_is_idle_after_each(client: httpx.Client, agent: str, chat: str) -> None:
    """The engine stops its work for each deleted run. No other requests reach the engine
    meanwhile.
    """
    account, chance = Account(client, chat), random.Random(0)
    at_work = 0
    with account.slowed():
        for _ in range(DELETIONS // 4):
            run = account.run(agent, COUNT)
            # Some runs are deleted before they reach the engine.
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
    """No table keeps the texts of a deleted run, nor the answers stored for `Idempotency-Key`. The
    bill still contains its usage.
    """
    word = canary("again", 1)
    body = {"input": f"What is the weather in Paris? {word}"}
    key = {"idempotency-key": word}
    run = client.post(f"{agent}/runs", json=body, headers=key).raise_for_status().json()
    again = client.post(f"{agent}/runs", json=body, headers=key)
    assert again.json()["id"] == run["id"]
    with sqlite3.connect(traced_server.data_dir / "stoker.db") as rows:
        before = mentions(rows, run["id"])
        assert {"agent_runs", "agent_run_events", "idempotency_records"} <= before
    client.delete(f"{agent}/runs/{run['id']}").raise_for_status()
    with sqlite3.connect(traced_server.data_dir / "stoker.db") as rows:
        assert mentions(rows, run["id"]) == set()
    usage = client.get("/v1/usage").raise_for_status().json()
    assert usage["total"] if "total" in usage else usage["data"]
    # The key is free again: a repeated request starts a new run.
    anew = client.post(f"{agent}/runs", json=body, headers=key).raise_for_status().json()
    assert anew["id"] != run["id"]


def mentions(rows: sqlite3.Connection, run_id: str) -> set[str]:
    """Returns the tables with a row that contains an id."""
    matches: set[str] = set()
    tables = [name for (name,) in rows.execute("SELECT name FROM sqlite_master WHERE type='table'")]
    for table in tables:
        for row in rows.execute(f'SELECT * FROM "{table}"'):
            if any(isinstance(value, str) and run_id in value for value in row):
                matches.add(table)
    return matches


def test_a_whole_run_leaves_nothing(
    traced_server: Server, client: httpx.Client, agent: str, chat: str, collector: Collector
) -> None:
    """No file, log, metric or trace contains the prompt, the tool's output or the answer after
    deletion.
    """
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
