"""Tests of faults around nodes, with real processes."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from sqlalchemy import text

import stoker.demo
from stoker.store.db import Database
from tests.deployments.support import DEPLOYMENTS, bert, call, check_error, deploy
from tests.nodes.support import Fleet, fleet
from tests.nodes.test_listing import nodes
from tests.servers.support import OUTAGE_S, until
from tests.support import postgres
from tests.support.deploying import push
from tests.support.on_nodes import NodeHost
from tests.support.server import Server

CHAT = Path(stoker.demo.__file__).parent / "models" / "tiny-chat"
COUNT = [{"role": "user", "content": "Count."}]
PATIENCE_S = 90.0
ANSWER_S = 20.0
"""Longest duration of a call after the loss of a node, in seconds. A silent node is disconnected
after ten.
"""


@pytest.fixture(scope="module")
def frail(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Yields a fleet with servers that tests kill. `whole` starts them again."""
    with (
        postgres.cluster() as cluster,
        fleet(tmp_path_factory.mktemp("frail"), cluster) as killable_fleet,
    ):
        yield killable_fleet


@pytest.fixture(autouse=True)
def whole(frail: Fleet) -> None:
    """Starts every server of the fleet that is not running. Each gateway can then use each node."""
    for server in (*frail.nodes, *frail.gateways):
        if server.process is None or server.process.poll() is not None:
            server.start()
    for gateway in frail.gateways:
        gateway.wait_ready()
        until(lambda gateway=gateway: statuses(gateway) == ["ready"] * len(frail.nodes), PATIENCE_S)


def statuses(gateway: Server) -> list[str]:
    return [node["status"] for node in nodes(gateway)]


@pytest.fixture(scope="module")
def owned(frail: Fleet) -> tuple[str, str]:
    """Returns an account's key and the id of its artifact."""
    with frail.gateways[0].account() as account:
        artifact = push(account, bert())
        return account.headers["authorization"].removeprefix("Bearer "), artifact["id"]


@pytest.fixture
def clients(frail: Fleet, owned: tuple[str, str]) -> Iterator[list[httpx.Client]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(gateway.client(owned[0])) for gateway in frail.gateways]


@pytest.fixture
def tagger(
    clients: list[httpx.Client], owned: tuple[str, str], request: pytest.FixtureRequest
) -> dict[str, Any]:
    """Returns a deployment that is loaded on one node and known to both gateways."""
    made = deploy(clients[0], owned[1], f"tagger-{request.node.name[5:25].strip('_')}")
    for client in clients:
        until(lambda client=client: call(client, made["model"], wait=60).status_code == 200)
    return made


def asked(url: str, statement: str, **values: Any) -> list[Any]:
    async def ask() -> list[Any]:
        database = Database(url)
        try:
            async with database.transaction() as session:
                result = await session.execute(text(statement), values)
                return [*result.scalars()] if result.returns_rows else []  # type: ignore[attr-defined]
        finally:
            await database.close()

    return asyncio.run(ask())


def node_of(frail: Fleet, deployment: dict[str, Any]) -> NodeHost:
    """Returns the node that runs a deployment."""
    statement = "SELECT node_id FROM leases WHERE deployment_id = :id"
    held = lambda: asked(frail.cluster.url, statement, id=deployment["id"])  # noqa: E731
    # A busy machine may have replaced the first replica. Its lease ends a moment later.
    until(lambda: len(held()) == 1, PATIENCE_S)
    [identifier] = held()
    [owner] = [node for node in frail.nodes if node.id == identifier]
    return owner


def answered(client: httpx.Client, model: str) -> float:
    """Returns the seconds until a call is answered. Retries calls that are rejected with 503 and
    `Retry-After`.
    """
    begun = time.monotonic()
    while True:
        answer = call(client, model, wait=60)
        assert time.monotonic() - begun < PATIENCE_S
        if answer.status_code == 200:
            return time.monotonic() - begun
        assert answer.status_code == 503, answer.text
        assert answer.headers["retry-after"]
        time.sleep(0.1)


class Streaming(threading.Thread):
    """Reads a long answer until it completes or fails."""

    def __init__(self, client: httpx.Client, model: str, tokens: int = 900) -> None:
        super().__init__()
        self.begun = threading.Event()
        self.lines: list[str] = []
        self.error: Exception | None = None
        self._client = client
        self._body = {
            "model": model,
            "messages": COUNT,
            "stream": True,
            "max_tokens": tokens,
            "ignore_eos": True,
        }
        self.start()

    def run(self) -> None:
        path, headers = "/v1/chat/completions", {"prefer": "wait=60"}
        try:
            with self._client.stream("POST", path, json=self._body, headers=headers) as answer:
                for line in answer.iter_lines():
                    self.lines.append(line)
                    self.begun.set()
        except httpx.TransportError as error:
            self.error = error
        self.begun.set()

    def ended(self) -> list[str]:
        self.join(PATIENCE_S)
        assert not self.is_alive()
        return [line for line in self.lines if line]


@pytest.fixture
def talker(clients: list[httpx.Client], request: pytest.FixtureRequest) -> dict[str, Any]:
    artifact = push(clients[0], CHAT)
    made = deploy(clients[0], artifact["id"], f"talker-{request.node.name[5:25].strip('_')}")
    until(lambda: made["model"] in clients[1].get("/v1/models").text)
    return made


@pytest.mark.fault("n1")
def test_a_node_host_is_killed(
    frail: Fleet, clients: list[httpx.Client], tagger: dict[str, Any], talker: dict[str, Any]
) -> None:
    streaming = Streaming(clients[0], talker["model"])
    assert streaming.begun.wait(PATIENCE_S)
    node = node_of(frail, talker)
    identifier = node.id
    assert node.process
    children = psutil.Process(node.process.pid).children(recursive=True)
    assert children
    node.kill()
    lines = streaming.ended()
    [last] = [line for line in lines if line.startswith("event: error")] or [lines[-1]]
    assert "error" in last or '"error"' in lines[-1], lines[-3:]
    # All its processes ended.
    _, alive = psutil.wait_procs(children, timeout=20)
    assert alive == []
    # Both gateways can call both models, on any node.
    for client in clients:
        assert answered(client, tagger["model"]) < ANSWER_S
    second = Streaming(clients[1], talker["model"], tokens=5)
    assert second.ended()[-1] == "data: [DONE]"
    node.start()
    assert node.id == identifier
    for gateway in frail.gateways:
        gateway.wait_ready()


def engine_host(node: NodeHost) -> psutil.Process:
    assert node.process
    node_process = psutil.Process(node.process.pid)

    def hosts() -> list[psutil.Process]:
        return [
            child for child in node_process.children() if "stoker.replica.host" in child.cmdline()
        ]

    [host], _ = until(hosts, PATIENCE_S)
    return host


@pytest.fixture
def unloadable(frail: Fleet) -> Iterator[None]:
    """Prevents loads on all nodes until a node's engine host is resumed."""
    # Wait until all nodes are ready. No engine host could load a model on a node that still starts.
    until(lambda: statuses(frail.gateways[0]) == ["ready"] * 2, PATIENCE_S)
    engine_hosts = [engine_host(node) for node in frail.nodes]
    for one in engine_hosts:
        one.suspend()
    yield
    for one in engine_hosts:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.resume()


def kill_where_it_loads(frail: Fleet, client: httpx.Client, deployment: dict[str, Any]) -> NodeHost:
    """Kills the one running node that began to load the deployment."""
    begun = f'"{deployment["id"]}", "status": "starting"'

    def loading() -> list[NodeHost]:
        running = [node for node in frail.nodes if node.process and node.process.poll() is None]
        return [node for node in running if begun in node.log.read_text()]

    [node], _ = until(loading, PATIENCE_S)
    # The node reports the replica after it has reported that the call waits.
    path = f"{DEPLOYMENTS}/{deployment['id']}"
    until(lambda: client.get(path).raise_for_status().json()["workers"], PATIENCE_S)
    node.kill()
    return node


def counted(client: httpx.Client, deployment: dict[str, Any]) -> tuple[int, int]:
    """Returns the numbers of requests and errors of the deployment, once it has any."""

    def rows() -> list[dict[str, Any]]:
        usage = client.get("/v1/usage", params={"group_by": "deployment"}).json()["data"]
        deployment_rows = [row for row in usage if row.get("deployment_id") == deployment["id"]]
        return [row for row in deployment_rows if row["requests"]]

    [row], _ = until(rows, PATIENCE_S)
    return row["requests"], row["errors"]


@pytest.mark.fault("n15")
@pytest.mark.usefixtures("unloadable")
def test_a_node_is_killed_while_it_loads(
    frail: Fleet, clients: list[httpx.Client], owned: tuple[str, str]
) -> None:
    """A call that only waited on the killed node is answered by another node without an error."""
    made = deploy(clients[0], owned[1], "awaited")
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(call, clients[0], made["model"], wait=60)
        lost = kill_where_it_loads(frail, clients[0], made)
        [other] = [node for node in frail.nodes if node is not lost]
        engine_host(other).resume()
        assert answer.result(PATIENCE_S).status_code == 200
    assert counted(clients[0], made) == (1, 0)


@pytest.mark.fault("n15")
@pytest.mark.usefixtures("unloadable")
def test_what_has_lost_two_nodes_is_not_tried_again(
    frail: Fleet, clients: list[httpx.Client], owned: tuple[str, str]
) -> None:
    """A deployment that lost two nodes is not loaded a third time, because its load may be the
    cause.
    """
    made = deploy(clients[0], owned[1], "fateful")
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(call, clients[0], made["model"], wait=60)
        first = kill_where_it_loads(frail, clients[0], made)
        assert kill_where_it_loads(frail, clients[0], made) is not first
        check_error(answer.result(PATIENCE_S), 503, "CapacityError", "worker_lost")
    assert counted(clients[0], made) == (1, 1)


@pytest.mark.fault("n2")
def test_a_replica_is_killed(clients: list[httpx.Client], tagger: dict[str, Any]) -> None:
    path = f"{DEPLOYMENTS}/{tagger['id']}"
    [worker] = clients[0].get(path).raise_for_status().json()["workers"]
    os.kill(worker["pid"], signal.SIGKILL)
    for client in clients:
        assert answered(client, tagger["model"]) < ANSWER_S
    [new] = until(lambda: clients[1].get(path).json()["workers"])[0]
    assert new["id"] != worker["id"]


@pytest.mark.fault("n3")
def test_a_gateway_is_killed(
    frail: Fleet, clients: list[httpx.Client], talker: dict[str, Any]
) -> None:
    streaming = Streaming(clients[0], talker["model"])
    assert streaming.begun.wait(PATIENCE_S)
    path = f"{DEPLOYMENTS}/{talker['id']}"
    frail.gateways[0].kill()
    streaming.ended()

    # The node cancels its work. The model stays loaded for the other gateway.
    def outstanding() -> list[int]:
        return [worker["outstanding"] for worker in clients[1].get(path).json()["workers"]]

    until(lambda: outstanding() == [0])
    whole = Streaming(clients[1], talker["model"], tokens=5)
    assert whole.ended()[-1] == "data: [DONE]"


@pytest.mark.release
@pytest.mark.fault("n4")
def test_the_database_is_gone_for_a_while(
    frail: Fleet, clients: list[httpx.Client], tagger: dict[str, Any]
) -> None:
    """Loaded models stay loaded and accept calls of recently verified keys. No model is loaded
    again.
    """
    before = asked(frail.cluster.url, "SELECT generation FROM leases ORDER BY 1")
    frail.cluster.stop()
    begun, statuses = time.monotonic(), list[int]()
    while time.monotonic() - begun < OUTAGE_S:
        answers = [call(client, tagger["model"]) for client in clients]
        statuses += [answer.status_code for answer in answers]
        assert {answer.status_code for answer in answers} <= {200, 503}, answers[0].text
        time.sleep(0.1)
    # Keys and calls stay trusted for some seconds.
    assert statuses.count(200) >= 4
    frail.cluster.start()
    for client in clients:
        assert answered(client, tagger["model"]) < ANSWER_S
    # No node is considered lost, and no model is loaded again.
    time.sleep(2)
    after = asked(frail.cluster.url, "SELECT generation FROM leases ORDER BY 1")
    assert set(before) <= set(after)
    starts = [
        node.log.read_text().count(f'"{tagger["id"]}", "status": "starting"')
        for node in frail.nodes
    ]
    assert sum(starts) == 1


@pytest.mark.release
@pytest.mark.fault("n5")
def test_a_node_host_stands_still(
    frail: Fleet, clients: list[httpx.Client], tagger: dict[str, Any]
) -> None:
    node = node_of(frail, tagger)
    assert node.process
    node.process.send_signal(signal.SIGSTOP)
    try:
        for client in clients:
            assert answered(client, tagger["model"]) < ANSWER_S
    finally:
        node.process.send_signal(signal.SIGCONT)
    for client in clients:
        assert answered(client, tagger["model"]) < ANSWER_S


class Wire:
    """Forwards bytes between gateways and a node until it is cut. Then it forwards nothing and
    notifies neither side.
    """

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._is_cut = threading.Event()
        self._sockets: list[socket.socket] = [self._listener]
        self._spawn(self._accept)

    def cut(self) -> None:
        self._is_cut.set()

    def close(self) -> None:
        for endpoint in self._sockets:
            with contextlib.suppress(OSError):
                endpoint.shutdown(socket.SHUT_RDWR)
            endpoint.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                accepted, _ = self._listener.accept()
                other = socket.create_connection(self._target)
                self._sockets += [accepted, other]
                self._spawn(self._pass, accepted, other)
                self._spawn(self._pass, other, accepted)

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                if self._is_cut.is_set():
                    continue
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    @staticmethod
    def _spawn(work: Any, *given: Any) -> None:
        threading.Thread(target=work, args=given, daemon=True).start()


@pytest.mark.release
@pytest.mark.fault("n6")
def test_the_network_between_a_gateway_and_a_node_is_cut(
    frail: Fleet, clients: list[httpx.Client], tagger: dict[str, Any]
) -> None:
    node, gateway = node_of(frail, tagger), frail.gateways[0]
    host, _, port = node.base_url.rpartition(":")
    wire = Wire((host, int(port)))
    move = "UPDATE nodes SET address = :address WHERE id = :id"
    asked(frail.cluster.url, move, address=wire.address, id=node.id)
    try:
        # The other gateway keeps its connection.
        gateway.stop()
        gateway.start(port=int(gateway.base_url.rpartition(":")[2]))
        gateway.wait_ready()
        assert answered(clients[0], tagger["model"]) < ANSWER_S
        generations = asked(
            frail.cluster.url,
            "SELECT count(*) FROM leases WHERE deployment_id = :id",
            id=tagger["id"],
        )
        assert generations == [1]
        wire.cut()
        took = answered(clients[0], tagger["model"])
        assert took < ANSWER_S, took
        # The other node answered. The other gateway still calls the first node.
        assert answered(clients[1], tagger["model"]) < ANSWER_S
        of_it = "SELECT node_id FROM leases WHERE deployment_id = :id"
        assert len(set(asked(frail.cluster.url, of_it, id=tagger["id"]))) == 2
    finally:
        asked(frail.cluster.url, move, address=node.base_url, id=node.id)
        wire.close()
    # The gateway finds the node again at its own address.
    lines = lambda: gateway.log.read_text().rpartition("connection to a node closed")[2]  # noqa: E731
    until(lambda: "connected to a node" in lines(), PATIENCE_S)


@pytest.mark.release
@pytest.mark.fault("n9")
def test_a_node_cannot_place_files(frail: Fleet, clients: list[httpx.Client]) -> None:
    """A node that cannot place files, as with a full or broken disk, is replaced by another node
    for its loads.
    """
    # Separate artifacts: a node that already has the files of an artifact is preferred.
    artifacts = [push(clients[0], bert()) for _ in range(4)]
    node = frail.nodes[0]
    models, aside = node.data_dir / "models", node.data_dir / "models.aside"
    models.mkdir(exist_ok=True)
    models.rename(aside)
    models.write_text("no folder")
    try:
        made = [
            deploy(clients[0], one["id"], f"unplaced-{number}")
            for number, one in enumerate(artifacts)
        ]
        before = node.log.read_text().count('"status": "failed"')
        for one in made:
            assert answered(clients[0], one["model"]) < ANSWER_S
        # The node was selected for some of them.
        assert node.log.read_text().count('"status": "failed"') > before
        assert all(answered(clients[1], one["model"]) < ANSWER_S for one in made)
    finally:
        models.unlink()
        aside.rename(models)


@pytest.mark.fault("n7")
def test_a_node_is_asked_to_end(
    frail: Fleet, clients: list[httpx.Client], tagger: dict[str, Any], talker: dict[str, Any]
) -> None:
    """A node that is stopped finishes its calls. Other nodes answer new calls, and no caller sees
    an error.
    """
    streaming = Streaming(clients[0], talker["model"], tokens=400)
    assert streaming.begun.wait(PATIENCE_S)
    node = node_of(frail, talker)
    assert node.process
    before = len(node.log.read_text().splitlines())
    node.process.send_signal(signal.SIGTERM)
    statuses = list[int]()
    while node.process.poll() is None:
        statuses += [call(client, tagger["model"], wait=60).status_code for client in clients]
    assert streaming.ended()[-1] == "data: [DONE]"
    assert node.process.wait(PATIENCE_S) == 0
    assert set(statuses) == {200}
    count_statement = "SELECT count(*) FROM nodes WHERE id = :id"
    assert asked(frail.cluster.url, count_statement, id=node.id) == [0]
    new_lines = node.log.read_text().splitlines()[before:]
    assert not [line for line in new_lines if json.loads(line)["level"] == "error"]


@pytest.mark.release
@pytest.mark.fault("n8")
def test_without_any_node(
    frail: Fleet, clients: list[httpx.Client], tagger: dict[str, Any]
) -> None:
    for node in frail.nodes:
        assert node.stop() == 0
    answer = call(clients[0], tagger["model"], wait=1)
    check_error(answer, 503, "CapacityError", "no_node")
    assert answer.headers["retry-after"]
    check_error(call(clients[1], tagger["model"], wait=0), 503, "CapacityError", "no_node")
    assert clients[0].get("/ready").status_code == 503
    assert clients[0].get("/health").status_code == 200
    # A call that waits long enough is answered as soon as a node connects.
    answers: list[httpx.Response] = []
    waiting = threading.Thread(
        target=lambda: answers.append(call(clients[0], tagger["model"], wait=60))
    )
    waiting.start()
    frail.nodes[1].start()
    waiting.join(PATIENCE_S)
    assert [reply.status_code for reply in answers] == [200], answers[0].text
