"""Tests of the list of nodes in the API and in `stoker cluster status`."""

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

import stoker
import stoker.demo
from tests.cli.support import Cli
from tests.nodes.support import Fleet
from tests.support.deploying import deploy, wait_for
from tests.support.on_nodes import NodeHost
from tests.support.server import Server

MODEL = Path(stoker.demo.__file__).parent / "models" / "tiny-sentiment"
CALL = "/v1/classifications/text"
TIMEOUT_S = 60


def nodes(gateway: Server) -> list[dict[str, Any]]:
    with gateway.client(gateway.operator_key) as operator:
        page = operator.get("/v1/nodes").raise_for_status().json()
    assert (page["object"], page["has_more"]) == ("list", False)
    ids = [node["id"] for node in page["data"]]
    assert ids == sorted(ids)
    assert (page["first_id"], page["last_id"]) == (ids[0], ids[-1])
    return page["data"]


def leases(gateway: Server, deployment_id: str) -> list[tuple[str, dict[str, Any]]]:
    """Returns the leases of a deployment, each with the id of its node."""
    return [
        (node["id"], lease)
        for node in nodes(gateway)
        for lease in node["leases"]
        if lease["deployment_id"] == deployment_id
    ]


def eventually(look: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + TIMEOUT_S
    while not (result := look()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return result


def ask(client: httpx.Client, model: str) -> None:
    body = {"model": model, "inputs": "What a wonderful day!"}
    assert client.post(CALL, json=body).raise_for_status().json()[0]["label"] == "positive"


class TestNodes:
    def test_each_gateway_sees_both(self, fleet_of_two: Fleet) -> None:
        hosts = {node.id: node for node in fleet_of_two.nodes}
        for gateway in fleet_of_two.gateways:
            by_id = {listed["id"]: listed for listed in nodes(gateway)}
            assert by_id.keys() == hosts.keys()
            for listed in by_id.values():
                host = hosts[listed["id"]]
                assert host.process is not None
                assert (listed["pid"], listed["address"]) == (host.process.pid, host.base_url)
                assert (listed["object"], listed["version"]) == ("node", stoker.__version__)
                assert listed["cores"] == (os.cpu_count() or 1)
                memory = listed["memory"]
                assert 0 < memory["budget_bytes"] < memory["total_bytes"]
                assert listed["seen_at"] >= listed["started_at"]

    def test_their_engine_hosts_are_ready_in_a_while(self, fleet_of_two: Fleet) -> None:
        gateway = fleet_of_two.gateways[1]
        eventually(lambda: {node["status"] for node in nodes(gateway)} == {"ready"})

    def test_a_lease_is_where_the_replica_is(self, fleet_of_two: Fleet) -> None:
        first, second = fleet_of_two.account()
        made = deploy(first, MODEL, "listed")
        ask(first, "listed")
        # The node also reports the replica to the gateway that was not called.
        gateway = fleet_of_two.gateways[1]
        (node_id, lease), *other_leases = eventually(
            # The node reports the model and account within a second.
            lambda: [
                one for one in leases(gateway, made["id"]) if one[1]["replicas"] and one[1]["model"]
            ]
        )
        assert other_leases == []
        [replica] = lease["replicas"]
        assert (lease["model"], lease["account_id"]) == ("listed", first.account_id)  # type: ignore[attr-defined]
        assert (lease["spec_id"], replica["status"]) == (made["version_id"], "ready")
        assert replica["engine"] == wait_for(second, made["id"], "ready")["workers"][0]["engine"]
        # The replica's process is a child of the engine host and a grandchild of the node host.
        [host] = [one for one in fleet_of_two.nodes if one.id == node_id]
        assert host.process is not None
        children = psutil.Process(host.process.pid).children(recursive=True)
        assert replica["pid"] in {one.pid for one in children}
        node = next(one for one in nodes(gateway) if one["id"] == node_id)
        assert node["memory"]["held_bytes"] > 0
        second.delete(f"/v1/deployments/{made['id']}").raise_for_status()
        eventually(lambda: not leases(gateway, made["id"]))

    def test_two_replicas_have_a_lease_on_each_node(self, fleet_of_two: Fleet) -> None:
        first, _ = fleet_of_two.account()
        made = deploy(first, MODEL, "on-both", readiness="warm", replicas={"min": 2, "max": 2})
        gateway = fleet_of_two.gateways[0]

        def on_both() -> bool:
            pairs = leases(gateway, made["id"])
            ready = {
                node_id
                for node_id, lease in pairs
                for one in lease["replicas"]
                if one["status"] == "ready"
            }
            return len(pairs) == 2 and ready == {one.id for one in fleet_of_two.nodes}

        eventually(on_both)
        generations = [lease["generation"] for _, lease in leases(gateway, made["id"])]
        assert len({*generations}) == 2
        first.delete(f"/v1/deployments/{made['id']}").raise_for_status()

    def test_for_operators_alone(self, fleet_of_two: Fleet) -> None:
        for client in fleet_of_two.account():
            assert client.get("/v1/nodes").status_code == 401


class TestClusterStatus:
    @pytest.fixture
    def operator(self, fleet_of_two: Fleet) -> Cli:
        gateway = fleet_of_two.gateways[0]
        return Cli(gateway.base_url, gateway.operator_key)

    def test_as_a_table(self, fleet_of_two: Fleet, operator: Cli) -> None:
        first, _ = fleet_of_two.account()
        made = deploy(first, MODEL, "tabled")
        ask(first, "tabled")
        eventually(
            lambda: any(
                lease["replicas"] for _, lease in leases(fleet_of_two.gateways[0], made["id"])
            )
        )
        ran = operator.run("cluster", "status")
        assert ran.returncode == 0, ran.stderr
        lines = [line.split() for line in ran.stdout.splitlines()]
        for node in fleet_of_two.nodes:
            assert any(node.id in line and node.base_url in line for line in lines)
        [row] = [line for line in lines if line[:1] == ["tabled"]]
        assert (row[1], row[4]) == (first.account_id, "ready")  # type: ignore[attr-defined]
        first.delete(f"/v1/deployments/{made['id']}").raise_for_status()

    def test_as_json(self, fleet_of_two: Fleet, operator: Cli) -> None:
        listed = json.loads(operator.run("cluster", "status", "--json").stdout)
        assert [node["id"] for node in listed] == sorted(node.id for node in fleet_of_two.nodes)

    def test_needs_an_operators_key(self, fleet_of_two: Fleet) -> None:
        first, _ = fleet_of_two.account()
        key = first.headers["authorization"].removeprefix("Bearer ")
        ran = Cli(fleet_of_two.gateways[0].base_url, key).run("cluster", "status")
        assert ran.returncode == 1 and "key" in ran.stderr


class TestNodesThatGo:
    """Separate nodes of these tests that end. The shared nodes stay."""

    def test_one_that_is_told_to_end_drains_and_goes(self, fleet_of_two: Fleet) -> None:
        gateway = fleet_of_two.gateways[0]
        with another(fleet_of_two, "leaving") as node:
            eventually(lambda: status(gateway, node.id) == "ready")
            with ThreadPoolExecutor() as pool:
                ended = pool.submit(node.stop)
                eventually(lambda: status(gateway, node.id) == "draining")
                assert ended.result() == 0
            eventually(lambda: status(gateway, node.id) is None)

    def test_one_that_is_killed_is_unreachable_then_gone(self, fleet_of_two: Fleet) -> None:
        gateway = fleet_of_two.gateways[0]
        with another(fleet_of_two, "cut-off") as node:
            first = eventually(lambda: seen(gateway, node.id, "ready"))
            # The database has the node's data after its first heartbeat.
            before = eventually(lambda: seen_after(gateway, node.id, first["seen_at"]))
            node.kill()
            lost = eventually(lambda: seen(gateway, node.id, "unreachable"))
            # The node's last data in the database and in its reports stay visible.
            same = ("name", "pid", "address", "cores", "processor")
            assert [lost[field] for field in same] == [before[field] for field in same]
            assert lost["memory"]["budget_bytes"] == before["memory"]["budget_bytes"]
            eventually(lambda: status(gateway, node.id) is None)


@contextlib.contextmanager
def another(fleet: Fleet, name: str) -> Iterator[NodeHost]:
    node = NodeHost(fleet.root / name / "data", **fleet.env, STOKER_NODE_NAME=name)
    node.data_dir.parent.mkdir()
    try:
        node.start()
        yield node
    finally:
        node.stop()


def status(gateway: Server, node_id: str) -> str | None:
    return next((node["status"] for node in nodes(gateway) if node["id"] == node_id), None)


def seen_after(gateway: Server, node_id: str, time: str) -> dict[str, Any] | None:
    node = seen(gateway, node_id, "ready")
    return node if node and node["seen_at"] > time else None


def seen(gateway: Server, node_id: str, status: str) -> dict[str, Any] | None:
    expected = (node_id, status)
    return next((node for node in nodes(gateway) if (node["id"], node["status"]) == expected), None)
