"""Gateways and nodes of two releases work together."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

import stoker
from tests.agents.conftest import MODEL
from tests.nodes.support import Fleet
from tests.servers.load import Balancer, load
from tests.servers.releases import VERSION, next_release
from tests.servers.support import until
from tests.support import postgres
from tests.support.deploying import deploy, wait_for
from tests.support.on_nodes import NodeHost
from tests.support.server import Server

pytestmark = pytest.mark.release

OWN = stoker.__version__


class MixedFleet:
    """A fleet whose members are replaced by members of another release."""

    def __init__(self, root: Path, cluster: postgres.Cluster) -> None:
        env = {
            "STOKER_DATABASE_URL": cluster.url,
            "STOKER_BLOB_URL": f"file://{root}/blobs",
            "STOKER_DRAIN_S": "2",
        }
        self.fleet = Fleet(cluster, root, [], [], env)
        self._next = next_release(root / "next")

    def gateway(self, version: str) -> Server:
        gateway = self.fleet.add_gateway(**self._release(version)).start()
        assert httpx.get(f"{gateway.base_url}/health").json()["version"] == version
        return gateway

    def node(self, version: str) -> NodeHost:
        return self.fleet.add_node(**self._release(version)).start()  # type: ignore[return-value]

    def nodes_of(self, gateway: Server) -> dict[str, tuple[str, str]]:
        """Returns the nodes as a gateway sees them: id, release and status."""
        with gateway.client(gateway.operator_key) as operator:
            nodes = operator.get("/v1/nodes").raise_for_status().json()["data"]
        return {node["id"]: (node["version"], node["status"]) for node in nodes}

    def stop(self) -> None:
        for member in (*self.fleet.gateways, *self.fleet.nodes):
            member.stop()

    def _release(self, version: str) -> dict[str, str]:
        return self._next if version == VERSION else {}


@pytest.fixture
def mixed(tmp_path: Path) -> Iterator[MixedFleet]:
    with postgres.cluster() as cluster:
        fleet = MixedFleet(tmp_path, cluster)
        try:
            yield fleet
        finally:
            fleet.stop()


class TestRollout:
    """First all gateways change their release, then all nodes."""

    @pytest.fixture(autouse=True)
    def start(self, mixed: MixedFleet) -> Iterator[None]:
        self.mixed = mixed
        self.node, self.gateway = mixed.node(OWN), mixed.gateway(OWN)
        self.balancer = Balancer()
        self.balancer.add(self.gateway)
        yield
        self.balancer.close()

    def test_no_call_fails(self) -> None:
        client = self.gateway.account()
        chat = deploy(client, MODEL, "chat", engine="torch", readiness="warm")
        wait_for(client, chat["id"], "ready")
        key = client.headers["authorization"].removeprefix("Bearer ")
        with load(self.balancer, key) as running:
            for version in (VERSION, OWN):
                self.replace_gateway(version)
                running.wait_answers(20)
                self.replace_node(version)
                running.wait_answers(20)
        assert min(running.answers["answer"], running.answers["stream"]) > 50

    def replace_gateway(self, version: str) -> None:
        new = self.mixed.gateway(version)
        self.balancer.add(new)
        assert self.gateway.stop() == 0
        self.balancer.remove(self.gateway)
        self.gateway = new

    def replace_node(self, version: str) -> None:
        new = self.mixed.node(version)
        until(lambda: self.mixed.nodes_of(self.gateway).get(new.id) == (version, "ready"), 60)
        old_version = OWN if version == VERSION else VERSION
        assert self.mixed.nodes_of(self.gateway)[self.node.id] == (old_version, "ready")
        assert self.node.stop() == 0
        self.node = new
