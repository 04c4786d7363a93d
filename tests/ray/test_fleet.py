"""A fleet with leases that Ray places, with real processes: a head, two nodes, two gateways.

The commands of docs/guide/ray.md start all of them, with addresses and folders of this machine.
"""

import contextlib
import os
import secrets
import shlex
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

import stoker.demo
from tests.deployments.support import DEPLOYMENTS, bert, call, check_error, deploy
from tests.nodes.test_faults import asked
from tests.ray.support import Command, free_port, state, until
from tests.support import postgres
from tests.support.deploying import push
from tests.support.doc_runs import block_of
from tests.support.server import Server

pytestmark = pytest.mark.release

pytest.importorskip("ray", reason="Ray is not installed: make install-dev")

CHAT = Path(stoker.demo.__file__).parent / "models" / "tiny-chat"
COUNT = [{"role": "user", "content": "Count."}]
NODE_MIB = 400
"""Memory budget of each node in MiB. Enough for some of these tests' models, but not for all."""
BLOCK_MIB = 352
LEASES = "SELECT node_id FROM leases WHERE deployment_id = :id AND node_id IS NOT NULL"
GUIDE = block_of("docs/guide/ray.md", "export STOKER_DATABASE_URL").text.splitlines()
EXPORT, SERVE, HEAD, JOIN = (shlex.split(line, comments=True) for line in GUIDE)
WAITING = "SELECT problem FROM leases WHERE deployment_id = :id AND node_id IS NULL"


@dataclass
class Fleet:
    url: str
    head: Command
    nodes: dict[str, Command]
    """Commands by the ids of their node hosts."""
    folders: dict[str, Path]
    gateways: list[Server]
    address: str
    """Address of the head."""
    env: dict[str, str]
    """Environment of a node."""

    def joining(self, folder: Path, *words: str) -> Command:
        """Returns the guide's command of a node, with an address of this machine."""
        here = {
            "head.inner:6379": self.address,
            "0.0.0.0": "127.0.0.1",
            "7070": "0",
            "/var/lib/stoker-node": str(folder),
        }
        arguments = [here.get(word, word) for word in JOIN[1:]]
        return Command(folder.parent / f"{folder.name}.log", *arguments, *words, **self.env)

    def row(
        self, node_id: str, *, idle: bool, mib: int = BLOCK_MIB, needs_device: bool = False
    ) -> int:
        """Inserts an empty lease that prefers a node, as a server does for a trial. Returns its
        generation.
        """
        name = f"trial_{secrets.token_hex(8)}"
        statement = (
            "INSERT INTO leases (spec_id, deployment_id, created_at, memory_bytes, prefers,"
            " needs_device, may_evict, is_kept, idle_at) VALUES (:name, :name, clock_timestamp(),"
            " :mib * 1048576, :node_id, :needs_device, false, false,"
            " CASE WHEN :idle THEN clock_timestamp() END) RETURNING generation"
        )
        values = {"mib": mib, "node_id": node_id, "needs_device": needs_device, "idle": idle}
        [made] = asked(self.url, statement, name=name, **values)
        return made

    def block(self, node_id: str, *, idle: bool, mib: int = BLOCK_MIB) -> int:
        """Inserts a lease that is placed on the node, once its former leases are removed. Returns
        its generation.
        """
        while True:
            made = self.row(node_id, idle=idle, mib=mib)
            if until(lambda made=made: self.placed(made)) == [node_id]:
                return made
            self.unblock([made])

    def unblock(self, generations: list[int]) -> None:
        statement = "DELETE FROM leases WHERE generation = ANY(:those)"
        asked(self.url, statement, those=generations)

    def left(self, generations: list[int]) -> list[int]:
        statement = "SELECT generation FROM leases WHERE generation = ANY(:those)"
        return sorted(asked(self.url, statement, those=generations))

    def placed(self, generation: int) -> list[str]:
        statement = "SELECT node_id FROM leases WHERE generation = :one AND node_id IS NOT NULL"
        return asked(self.url, statement, one=generation)

    def problem(self, generation: int) -> list[str]:
        statement = "SELECT problem FROM leases WHERE generation = :one AND problem IS NOT NULL"
        return asked(self.url, statement, one=generation)

    def nodes_of(self, deployment: dict[str, Any]) -> list[str]:
        return asked(self.url, LEASES, id=deployment["id"])

    def waits(self, deployment: dict[str, Any]) -> list[str | None]:
        """Returns the reason why each unplaced lease of the deployment waits."""
        return asked(self.url, WAITING, id=deployment["id"])


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    root = tmp_path_factory.mktemp("ray")
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(postgres.cluster())
        env = {"STOKER_DATABASE_URL": cluster.url, "STOKER_BLOB_URL": f"file://{root}/blobs"}
        assert [word.partition("=")[0] for word in EXPORT] == ["export", *env]
        assert SERVE == ["STOKER_RUNTIME=ray", "stoker", "serve", "--data-dir", "/var/lib/stoker"]
        port = free_port()
        here = {"6379": str(port), "/var/lib/stoker-head": str(root / "head")}
        words = [here.get(word, word) for word in HEAD[1:]]
        head = Command(root / "head.log", *words, STOKER_RAY_NODE_IP="127.0.0.1", **env)
        node_env = {**env, "STOKER_RAY_NODE_IP": "127.0.0.1"}
        node_env["STOKER_MEMORY_BUDGET_MIB"] = str(NODE_MIB)
        started_fleet = Fleet(cluster.url, head, {}, {}, [], f"127.0.0.1:{port}", node_env)
        folders = [root / f"node{number}" for number in range(2)]
        commands = [head, *map(started_fleet.joining, folders)]
        gateways = [
            Server(root / f"gateway{number}", STOKER_RUNTIME="ray", **env) for number in range(2)
        ]
        for process in (*commands, *gateways):
            stack.callback(process.stop)
        for process in commands:
            process.start()
        for gateway in gateways:
            gateway.start()
        ids = [until(lambda folder=folder: state(folder))["id"] for folder in folders]
        for gateway in gateways:
            gateway.wait_ready()
        started_fleet.nodes.update(zip(ids, commands[1:], strict=True))
        started_fleet.folders.update(zip(ids, folders, strict=True))
        started_fleet.gateways.extend(gateways)
        yield started_fleet


@pytest.fixture(scope="module")
def clients(fleet: Fleet) -> Iterator[list[httpx.Client]]:
    first = fleet.gateways[0].account()
    key = first.headers["authorization"].removeprefix("Bearer ")
    with first, fleet.gateways[1].client(key) as second:
        yield [first, second]


@pytest.fixture(scope="module")
def artifact_id(clients: list[httpx.Client]) -> str:
    return push(clients[0], bert())["id"]


def answer(client: httpx.Client, model: str) -> httpx.Response:
    """Returns the first successful answer, once the gateway knows the model and Ray has placed
    it.
    """

    def answered() -> httpx.Response | None:
        response = call(client, model, wait=60)
        return response if response.status_code == 200 else None

    return until(answered)


def gone(clients: list[httpx.Client], *made: dict[str, Any]) -> None:
    for deployment in made:
        clients[0].delete(f"{DEPLOYMENTS}/{deployment['id']}").raise_for_status()


def test_ray_places_what_is_called(
    fleet: Fleet, clients: list[httpx.Client], artifact_id: str
) -> None:
    """Simultaneous calls of a cold model at both gateways create one lease, one replica and one
    answer.
    """
    made = deploy(clients[0], artifact_id, "once")
    until(lambda: call(clients[1], "once", wait=0).status_code != 404)
    answers: list[httpx.Response] = []
    threads = [
        threading.Thread(target=lambda one=one: answers.append(call(one, "once", wait=60)))
        for one in clients * 3
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {one.status_code for one in answers} == {200}
    assert len({one.text for one in answers}) == 1
    [node_id] = fleet.nodes_of(made)
    assert node_id in fleet.nodes
    gone(clients, made)
    assert fleet.nodes_of(made) == []


def test_replicas_are_on_as_many_nodes(
    fleet: Fleet, clients: list[httpx.Client], artifact_id: str
) -> None:
    made = deploy(clients[0], artifact_id, "twice", readiness="hot", replicas={"min": 2, "max": 2})
    until(lambda: {*fleet.nodes_of(made)} == {*fleet.nodes})
    path = f"{DEPLOYMENTS}/{made['id']}"
    until(lambda: len(clients[0].get(path).json()["workers"]) == 2)
    assert answer(clients[1], "twice").status_code == 200
    gone(clients, made)


def test_a_chat_is_streamed(fleet: Fleet, clients: list[httpx.Client]) -> None:
    artifact = push(clients[0], CHAT)["id"]
    made = deploy(clients[0], artifact, "chat", pipeline="text-generation")
    key = clients[0].headers["authorization"].removeprefix("Bearer ")
    texts = list[str]()
    for gateway in fleet.gateways:
        sdk = openai.OpenAI(api_key=key, base_url=f"{gateway.base_url}/v1", max_retries=8)
        parts = sdk.chat.completions.create(
            model="chat", messages=COUNT, max_tokens=8, temperature=0, stream=True
        )
        texts.append(
            "".join(chunk.choices[0].delta.content or "" for chunk in parts if chunk.choices)
        )
    assert texts[0] == texts[1] != ""
    gone(clients, made)


def test_idle_models_go_for_what_is_called(
    fleet: Fleet, clients: list[httpx.Client], artifact_id: str
) -> None:
    """Both nodes are full of idle models. One is evicted for the call."""
    blocks = [fleet.block(node_id, idle=True) for node_id in fleet.nodes]
    made = deploy(clients[0], artifact_id, "called")
    answer(clients[1], "called")
    [remaining] = fleet.left(blocks)
    # The least recently used model is evicted.
    assert remaining == blocks[1]
    fleet.unblock(blocks)
    gone(clients, made)


def test_what_has_no_place_says_why(
    fleet: Fleet, clients: list[httpx.Client], artifact_id: str
) -> None:
    blocks = [fleet.block(node_id, idle=False) for node_id in fleet.nodes]
    made = deploy(clients[0], artifact_id, "waiting")
    until(lambda: call(clients[1], "waiting", wait=0).status_code == 503)
    refused = call(clients[1], "waiting", wait=2)
    error = check_error(refused, 503, "CapacityError", "insufficient_memory")
    assert "MiB of memory, but no node has more than 48 MiB free" in error["message"]
    shown = clients[0].get(f"{DEPLOYMENTS}/{made['id']}").json()
    assert shown["status"] == "starting"
    assert [reason in shown["message"] for reason in fleet.waits(made) if reason] == [True]
    fleet.unblock(blocks[:1])
    answer(clients[1], "waiting")
    assert fleet.left(blocks) == blocks[1:]
    fleet.unblock(blocks)
    gone(clients, made)


def test_what_is_stopped_asks_for_nothing(
    fleet: Fleet, clients: list[httpx.Client], artifact_id: str
) -> None:
    blocks = [fleet.block(node_id, idle=False) for node_id in fleet.nodes]
    made = deploy(clients[0], artifact_id, "stopped", readiness="warm")
    until(lambda: fleet.waits(made))
    clients[0].post(f"{DEPLOYMENTS}/{made['id']}/stop").raise_for_status()
    until(lambda: not fleet.waits(made))
    fleet.unblock(blocks)
    clients[1].post(f"{DEPLOYMENTS}/{made['id']}/start").raise_for_status()
    until(lambda: fleet.nodes_of(made))
    gone(clients, made)


def test_a_lease_is_as_large_as_what_it_is_for(fleet: Fleet) -> None:
    node_id, elsewhere = fleet.nodes
    full, shrunk = (fleet.block(each, idle=False) for each in (elsewhere, node_id))
    asked(
        fleet.url, "UPDATE leases SET memory_bytes = 100 << 20 WHERE generation = :one", one=shrunk
    )
    # The released memory is enough for one more lease only.
    other = fleet.block(node_id, idle=False, mib=240)
    refused = fleet.row(node_id, idle=False, mib=240)
    until(lambda: fleet.problem(refused))
    asked(fleet.url, "UPDATE leases SET memory_bytes = 1 WHERE generation = :one", one=other)
    until(lambda: fleet.placed(refused))
    fleet.unblock([full, shrunk, other, refused])


@pytest.mark.fault("n11")
def test_a_lost_head_is_not_noticed(
    fleet: Fleet, clients: list[httpx.Client], artifact_id: str
) -> None:
    """Loaded models stay loaded. A cold model waits until the head returns."""
    loaded = deploy(clients[0], artifact_id, "loaded")
    cold = deploy(clients[0], artifact_id, "cold")
    for client in clients:
        answer(client, "loaded")
    before = fleet.nodes_of(loaded)
    fleet.head.kill()
    pids = {state(folder)["pid"] for folder in fleet.folders.values()}
    for client in clients * 5:
        assert call(client, "loaded", wait=5).status_code == 200
    refused = call(clients[0], "cold", wait=1)
    check_error(refused, 503, "ModelLoadingError", "model_loading")
    assert fleet.waits(cold) == [None]
    fleet.head.start()
    begun = time.monotonic()
    while not fleet.nodes_of(cold):
        assert call(clients[1], "loaded", wait=5).status_code == 200
        assert time.monotonic() - begun < 120, fleet.head.last_lines()
        time.sleep(0.2)
    answer(clients[0], "cold")
    # The model stays on the same node, with the same hosts.
    assert fleet.nodes_of(loaded) == before
    assert {state(folder)["pid"] for folder in fleet.folders.values()} == pids
    gone(clients, loaded, cold)


@pytest.mark.fault("n12")
def test_a_killed_placer_is_back(
    fleet: Fleet, clients: list[httpx.Client], artifact_id: str
) -> None:
    fleet.head.child("place").send_signal(signal.SIGKILL)
    made = deploy(clients[0], artifact_id, "placed")
    answer(clients[0], "placed")
    gone(clients, made)


@pytest.mark.fault("n14")
def test_a_lost_machine_is_replaced_by_another(
    fleet: Fleet, clients: list[httpx.Client], artifact_id: str
) -> None:
    made = deploy(clients[0], artifact_id, "moving")
    answer(clients[0], "moving")
    [node_id] = fleet.nodes_of(made)
    fleet.nodes[node_id].kill()
    answer(clients[0], "moving")
    [now] = [candidate for candidate in fleet.nodes_of(made) if candidate != node_id]
    assert now in fleet.nodes
    fleet.nodes[node_id].start()
    until(lambda: node_id in asked(fleet.url, "SELECT id FROM nodes"))
    gone(clients, made)


@pytest.mark.fault("n14")
def test_a_killed_host_is_back_on_its_machine(
    fleet: Fleet, clients: list[httpx.Client], artifact_id: str
) -> None:
    made = deploy(clients[0], artifact_id, "hosted")
    answer(clients[0], "hosted")
    [node_id] = fleet.nodes_of(made)
    pid = state(fleet.folders[node_id])["pid"]
    os.kill(pid, signal.SIGKILL)
    answer(clients[0], "hosted")
    until(lambda: state(fleet.folders[node_id]).get("pid", pid) != pid)
    gone(clients, made)


def test_what_needs_a_device_waits_for_a_machine_with_one(fleet: Fleet, tmp_path: Path) -> None:
    """The device is only declared to Ray and does not exist."""
    [node_id, *_] = fleet.nodes
    waiting = fleet.row(node_id, idle=False, mib=16, needs_device=True)
    [problem] = until(lambda: fleet.problem(waiting))
    assert problem == "Ray has no node with a GPU that could run it. A new one was requested."
    folder = tmp_path / "with-device"
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp") as files:
        options = ["--node-ip-address=127.0.0.1", "--num-cpus=0", "--num-gpus=1"]
        options += [f"--address={fleet.address}", "--object-store-memory=83886080"]
        options += [f"--temp-dir={files}", "--dashboard-agent-listen-port=0", "--block"]
        node = fleet.joining(folder, "--start", shlex.join(["ray", "start", *options]))
        node.start()
        try:
            joined = until(lambda: state(folder))["id"]
            assert until(lambda: fleet.placed(waiting)) == [joined]
            fleet.unblock([waiting])
        finally:
            node.stop()
