"""Gateways without models and nodes with models on one PostgreSQL."""

import contextlib
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.support import postgres
from tests.support.on_nodes import NodeHost
from tests.support.server import Server


@dataclass
class Fleet:
    cluster: postgres.Cluster
    root: Path
    gateways: list[Server]
    nodes: list[NodeHost]
    env: dict[str, str]

    def account(self) -> list[httpx.Client]:
        """Returns clients of all gateways with the key of a new account."""
        first = self.gateways[0].account()
        key = first.headers["authorization"].removeprefix("Bearer ")
        return [first, *(gateway.client(key) for gateway in self.gateways[1:])]

    def add_gateway(self, **env: str) -> Server:
        data_dir = self.root / f"gateway{len(self.gateways)}" / "data"
        data_dir.parent.mkdir(parents=True)
        self.gateways.append(Server(data_dir, STOKER_RUNTIME="nodes", **self.env, **env))
        return self.gateways[-1]

    def add_node(self, python: str = sys.executable, **env: str) -> NodeHost:
        node = NodeHost(
            self.root / f"node{len(self.nodes)}" / "data", python=python, **self.env, **env
        )
        node.data_dir.parent.mkdir(parents=True)
        self.nodes.append(node)
        return node


@contextlib.contextmanager
def fleet(
    root: Path, cluster: postgres.Cluster, *, gateways: int = 2, nodes: int = 2, **env: str
) -> Iterator[Fleet]:
    """Starts gateways and nodes that share the blob folder and nothing else."""
    environment = {
        "STOKER_DATABASE_URL": cluster.url,
        "STOKER_BLOB_URL": f"file://{root}/blobs",
        **env,
    }
    new_fleet = Fleet(cluster, root, [], [], environment)
    for _ in range(gateways):
        new_fleet.add_gateway()
    for _ in range(nodes):
        new_fleet.add_node()
    try:
        _all([*new_fleet.nodes, *new_fleet.gateways])
        for server in new_fleet.gateways:
            server.wait_ready()
        yield new_fleet
    finally:
        for server in (*new_fleet.gateways, *new_fleet.nodes):
            server.stop()


def _all(servers: Sequence[Server]) -> None:
    """Starts the servers at the same time."""
    with ThreadPoolExecutor() as pool:
        list(pool.map(Server.start, servers))
