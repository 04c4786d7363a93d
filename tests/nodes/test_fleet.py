"""Two gateways and two nodes as seen by a caller of either gateway."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil
import pytest
from sqlalchemy import delete, select, text

import stoker.demo
from stoker.registry.deployments import versions
from stoker.runtime.specification import DeploymentSpec
from stoker.store.db import Database
from stoker.store.tables.deployments import Deployment, DeploymentVersion
from tests.deployments.support import DEPLOYMENTS, TOKENS, bert, call, check_error, deploy
from tests.nodes.support import Fleet
from tests.servers.support import SOON_S, until
from tests.support.deploying import push

CHAT = Path(stoker.demo.__file__).parent / "models" / "tiny-chat"
PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def clients(fleet_of_two: Fleet) -> Iterator[list[httpx.Client]]:
    account_clients = fleet_of_two.account()
    yield account_clients
    for client in account_clients:
        client.close()


@pytest.fixture(scope="module")
def artifact_id(clients: list[httpx.Client]) -> str:
    return push(clients[0], bert())["id"]


def known(client: httpx.Client, model: str) -> None:
    """Waits until a gateway knows a deployment that another gateway created."""
    until(lambda: call(client, model, wait=60).status_code != 404, PATIENCE_S)


def workers(client: httpx.Client, deployment: dict[str, Any]) -> list[dict[str, Any]]:
    shown = client.get(f"{DEPLOYMENTS}/{deployment['id']}").raise_for_status().json()
    return shown["workers"]


def test_one_replica_for_calls_of_both(clients: list[httpx.Client], artifact_id: str) -> None:
    """Simultaneous calls of a cold deployment at both gateways load it once, on one node."""
    made = deploy(clients[0], artifact_id, "once")
    until(lambda: call(clients[1], "once", wait=0).status_code != 404, PATIENCE_S)
    answers: list[httpx.Response] = []
    threads = [
        threading.Thread(target=lambda one=one: answers.append(call(one, "once", wait=60)))
        for one in clients * 4
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {one.status_code for one in answers} == {200}
    assert len({one.text for one in answers}) == 1
    for client in clients:
        until(lambda client=client: len(workers(client, made)) == 1)
    assert workers(clients[0], made)[0]["id"] == workers(clients[1], made)[0]["id"]
    lines = clients[1].get(f"{DEPLOYMENTS}/{made['id']}/logs").raise_for_status().json()["data"]
    assert lines
    clients[1].delete(f"{DEPLOYMENTS}/{made['id']}").raise_for_status()
    until(lambda: call(clients[0], "once").status_code == 404)


@pytest.mark.parametrize("first", [0, 1])
def test_creation_is_told_once_by_whichever_gateway(
    clients: list[httpx.Client], artifact_id: str, first: int
) -> None:
    maker, other = clients[first], clients[1 - first]
    made = deploy(maker, artifact_id, f"told-{first}")
    path = f"{DEPLOYMENTS}/{made['id']}"
    known(other, made["model"])

    def reasons(client: httpx.Client) -> list[str]:
        response = client.get(f"{path}/events", params={"order": "asc"}).raise_for_status()
        return [event["reason"] for event in response.json()["data"]]

    until(lambda: "loaded" in reasons(maker), PATIENCE_S)
    maker.post(f"{path}/stop").raise_for_status()
    until(lambda: other.get(path).json()["status"] == "stopped", PATIENCE_S)
    other.post(f"{path}/start").raise_for_status()
    until(lambda: call(maker, made["model"], wait=60).status_code == 200, PATIENCE_S)
    until(lambda: reasons(other).count("loaded") == 2, PATIENCE_S)
    for client in clients:
        assert reasons(client)[0] == "created"
        assert reasons(client).count("created") == 1
    maker.delete(path).raise_for_status()


def test_what_was_never_loaded_has_been_created(
    clients: list[httpx.Client], artifact_id: str
) -> None:
    """A deployment that no node knows has the reason `created` at both gateways."""
    for number, client in enumerate(clients):
        made = deploy(client, artifact_id, f"never-{number}")
        path = f"{DEPLOYMENTS}/{made['id']}"
        for each in clients:
            [event] = each.get(f"{path}/events").raise_for_status().json()["data"]
            assert (event["status"], event["reason"]) == ("idle", "created")
        client.delete(path).raise_for_status()


def test_stops_and_starts_of_what_no_node_has_are_told_as_well(
    clients: list[httpx.Client], artifact_id: str
) -> None:
    on_a, on_b = clients
    made = deploy(on_a, artifact_id, "untold")
    path = f"{DEPLOYMENTS}/{made['id']}"
    for action in ("stop", "stop", "start", "start"):
        on_a.post(f"{path}/{action}").raise_for_status()
    events = on_b.get(f"{path}/events", params={"order": "asc"}).raise_for_status().json()["data"]
    assert [(event["status"], event["reason"]) for event in events] == [
        ("idle", "created"),
        ("stopped", "stopped_by_user"),
        ("idle", "changed"),
    ]
    on_a.delete(path).raise_for_status()


def test_who_does_not_wait_has_it_loaded_all_the_same(
    clients: list[httpx.Client], artifact_id: str
) -> None:
    made = deploy(clients[0], artifact_id, "hurried")
    error = check_error(
        call(clients[0], "hurried", wait=0), 503, "ModelLoadingError", "model_loading"
    )
    assert 0 <= error["progress"] <= 1
    path = f"{DEPLOYMENTS}/{made['id']}"
    until(lambda: clients[0].get(path).json()["status"] == "ready", PATIENCE_S)
    clients[0].delete(path).raise_for_status()


def test_stopped_on_one_and_started_on_the_other(
    clients: list[httpx.Client], artifact_id: str
) -> None:
    on_a, on_b = clients
    made = deploy(on_a, artifact_id, "switched", readiness="warm")
    path = f"{DEPLOYMENTS}/{made['id']}"
    known(on_b, "switched")
    until(lambda: on_b.get(path).json()["status"] == "ready", PATIENCE_S)
    on_b.post(f"{path}/stop").raise_for_status()
    check_error(call(on_b, "switched"), 409, "ConflictError", "deployment_stopped")
    until(lambda: call(on_a, "switched").status_code == 409)
    until(lambda: on_a.get(path).json()["status"] == "stopped", PATIENCE_S)
    assert workers(on_a, made) == []
    on_a.post(f"{path}/start").raise_for_status()
    assert call(on_a, "switched", wait=60).status_code == 200
    until(lambda: call(on_b, "switched", wait=60).status_code == 200)
    on_a.delete(path).raise_for_status()


def test_what_stays_loaded_is_spread_over_the_nodes(
    fleet_of_two: Fleet, clients: list[httpx.Client], artifact_id: str
) -> None:
    replicas = {"min": 2, "max": 4}
    made = deploy(clients[0], artifact_id, "spread", readiness="hot", replicas=replicas)
    until(lambda: len(workers(clients[0], made)) == 2, PATIENCE_S)
    until(
        lambda: all(worker["status"] == "ready" for worker in workers(clients[0], made)), PATIENCE_S
    )
    for node in fleet_of_two.nodes:
        assert node.log.read_text().count(f'"{made["id"]}", "status": "ready"') == 1
    clients[0].delete(f"{DEPLOYMENTS}/{made['id']}").raise_for_status()


def test_chats_stream_through_either(fleet_of_two: Fleet, clients: list[httpx.Client]) -> None:
    artifact = push(clients[0], CHAT)
    made = deploy(clients[0], artifact["id"], "talker")
    names = lambda: [one["id"] for one in clients[1].get("/v1/models").json()["data"]]  # noqa: E731
    until(lambda: "talker" in names(), PATIENCE_S)
    texts = []
    for gateway, client in zip(fleet_of_two.gateways, clients, strict=True):
        key = client.headers["authorization"].removeprefix("Bearer ")
        sdk = openai.OpenAI(base_url=f"{gateway.base_url}/v1", api_key=key, max_retries=0)
        request: Any = {
            "model": "talker",
            "messages": [{"role": "user", "content": "What is the capital of France?"}],
            "temperature": 0,
            "extra_headers": {"prefer": "wait=60"},
        }
        chunks = [*sdk.chat.completions.create(**request, stream=True)]
        text = "".join(one.choices[0].delta.content or "" for one in chunks if one.choices)
        whole = sdk.chat.completions.create(**request)
        assert whole.choices[0].message.content == text
        assert len(chunks) > 3
        texts.append(text)
    assert texts[0] == texts[1]
    clients[0].delete(f"{DEPLOYMENTS}/{made['id']}").raise_for_status()


def test_a_caller_that_goes_away_ends_the_work_on_its_node(clients: list[httpx.Client]) -> None:
    artifact = push(clients[0], CHAT)
    made = deploy(clients[0], artifact["id"], "left")
    body = {
        "model": "left",
        "messages": [{"role": "user", "content": "Count."}],
        "stream": True,
        "max_tokens": 900,
        "ignore_eos": True,
    }
    headers = {"prefer": "wait=60"}
    with clients[0].stream("POST", "/v1/chat/completions", json=body, headers=headers) as answer:
        assert next(answer.iter_lines()).startswith("data: ")
    until(lambda: [worker["outstanding"] for worker in workers(clients[0], made)] == [0])
    clients[0].delete(f"{DEPLOYMENTS}/{made['id']}").raise_for_status()


def test_what_is_deleted_on_one_is_not_begun_again_by_the_other(
    fleet_of_two: Fleet, clients: list[httpx.Client], artifact_id: str
) -> None:
    deleted: list[str] = []
    for number in range(5):
        made = deploy(clients[0], artifact_id, f"gone-{number}", readiness="warm")
        until(lambda made=made: clients[1].get(f"{DEPLOYMENTS}/{made['id']}").status_code == 200)
        until(lambda made=made: workers(clients[0], made), PATIENCE_S)
        clients[0].delete(f"{DEPLOYMENTS}/{made['id']}").raise_for_status()
        deleted.append(made["id"])
    time.sleep(2 * SOON_S)
    log = "".join(node.log.read_text() for node in fleet_of_two.nodes)
    assert [log.count(f'"{deployment_id}", "status": "starting"') for deployment_id in deleted] == [
        1
    ] * 5


def test_who_waits_for_what_is_deleted_is_told_so(
    clients: list[httpx.Client], artifact_id: str
) -> None:
    """The waiting call is rejected at once, also by a server that is not yet notified of the
    deletion.
    """
    made = deploy(clients[0], artifact_id, "vanishing")
    until(lambda: call(clients[1], "vanishing", wait=60).status_code == 200, PATIENCE_S)
    clients[0].delete(f"{DEPLOYMENTS}/{made['id']}").raise_for_status()
    begun = time.monotonic()
    until(lambda: call(clients[1], "vanishing", wait=60).status_code == 404)
    assert time.monotonic() - begun < PATIENCE_S / 4


def test_a_full_queue_is_told_as_such(clients: list[httpx.Client], artifact_id: str) -> None:
    made = deploy(clients[0], artifact_id, "narrow", max_queue=1)
    assert call(clients[0], "narrow", wait=60).status_code == 200
    answers: list[httpx.Response] = []

    def ask() -> None:
        body = {"model": "narrow", "inputs": ["My name is Ada."] * 64}
        answers.append(clients[0].post(TOKENS, json=body))

    # A suspended replica answers no calls, so the queue fills.
    replica = psutil.Process(workers(clients[0], made)[0]["pid"])
    threads = [threading.Thread(target=ask) for _ in range(8)]
    replica.suspend()
    try:
        for thread in threads:
            thread.start()
        until(lambda: any(answer.status_code == 429 for answer in answers), PATIENCE_S)
    finally:
        replica.resume()
    for thread in threads:
        thread.join()
    statuses = {answer.status_code for answer in answers}
    assert statuses == {200, 429}, statuses
    [full] = [answer for answer in answers if answer.status_code == 429][:1]
    check_error(full, 429, "RateLimitError", "queue_full")
    assert int(full.headers["retry-after"]) >= 1
    clients[0].delete(f"{DEPLOYMENTS}/{made['id']}").raise_for_status()


def test_bad_input_is_the_callers_fault(clients: list[httpx.Client], artifact_id: str) -> None:
    made = deploy(clients[0], artifact_id, "strict")
    assert call(clients[0], "strict", wait=60).status_code == 200
    long = clients[0].post(
        TOKENS, json={"model": "strict", "inputs": "x", "aggregation_strategy": "nonsense"}
    )
    assert long.status_code == 400
    clients[0].delete(f"{DEPLOYMENTS}/{made['id']}").raise_for_status()


def test_calls_and_memory_are_counted_once(clients: list[httpx.Client], artifact_id: str) -> None:
    """The gateway counts the call and the node counts the memory. Both are in one row of usage."""
    made = deploy(clients[1], artifact_id, "counted")
    for _ in range(5):
        assert call(clients[1], "counted", wait=60).status_code == 200
    until(lambda: call(clients[0], "counted", wait=60).status_code == 200)

    def row() -> dict[str, Any] | None:
        usage = clients[0].get("/v1/usage", params={"group_by": "deployment"}).json()["data"]
        rows = [entry for entry in usage if entry.get("deployment_id") == made["id"]]
        is_there = rows and rows[0]["requests"] >= 6 and rows[0]["memory_mib_ms"] > 0
        return rows[0] if is_there else None

    usage_row, _ = until(row, PATIENCE_S)
    assert (usage_row["requests"], usage_row["errors"]) == (6, 0)
    time.sleep(SOON_S)
    clients[0].delete(f"{DEPLOYMENTS}/{made['id']}").raise_for_status()


def test_who_deletes_a_deployment_and_who_weighs_it_do_not_wait_for_each_other(
    fleet_of_two: Fleet, clients: list[httpx.Client], artifact_id: str
) -> None:
    made = deploy(clients[0], artifact_id, "weighed")
    spec = DeploymentSpec(
        id=made["version_id"],
        deployment_id=made["id"],
        account_id="",
        model="weighed",
        pipeline=made["pipeline"],
        source="",
        **{name: made[name] for name in ("engine", "device", "dtype")},
        memory_bytes=1 << 20,
    )

    async def weigh(database: Database) -> None:
        async with database.transaction() as session:
            await versions.weighed(session, spec)

    async def meet() -> None:
        database = Database(fleet_of_two.cluster.url)
        async with database.transaction() as session:
            row = select(Deployment).where(Deployment.id == made["id"]).with_for_update()
            assert await session.scalar(row)
            weighing = asyncio.create_task(weigh(database))
            # The task now holds all locks that it acquires before it waits.
            await until_async(lambda: waits_for_lock(database))
            these = DeploymentVersion.deployment_id == made["id"]
            await session.execute(delete(DeploymentVersion).where(these))
            await session.rollback()
        await weighing
        await database.close()

    asyncio.run(meet())
    clients[0].delete(f"{DEPLOYMENTS}/{made['id']}").raise_for_status()


async def waits_for_lock(database: Database) -> bool:
    statement = "SELECT count(*) FROM pg_locks WHERE NOT granted"
    async with database.reading() as session:
        return bool(await session.scalar(text(statement)))


async def until_async(found: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not await found():
            await asyncio.sleep(0.01)
