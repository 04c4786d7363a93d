"""Gateways that run no model, and nodes that do, on one PostgreSQL."""

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
        """Clients of all gateways, with the key of a new account."""
        first = self.gateways[0].account()
        key = first.headers["authorization"].removeprefix("Bearer ")
        return [first, *(one.client(key) for one in self.gateways[1:])]

    def add_gateway(self) -> Server:
        data_dir = self.root / f"gateway{len(self.gateways)}" / "data"
        data_dir.parent.mkdir(parents=True)
        self.gateways.append(Server(data_dir, STOKER_RUNTIME="nodes", **self.env))
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
    """So many of both, which share the folder of blobs and nothing else."""
    given = {"STOKER_DATABASE_URL": cluster.url, "STOKER_BLOB_URL": f"file://{root}/blobs", **env}
    found = Fleet(cluster, root, [], [], given)
    for _ in range(gateways):
        found.add_gateway()
    for _ in range(nodes):
        found.add_node()
    try:
        _all([*found.nodes, *found.gateways])
        for server in found.gateways:
            server.wait_ready()
        yield found
    finally:
        for server in (*found.gateways, *found.nodes):
            server.stop()


def _all(servers: Sequence[Server]) -> None:
    """Start them at the same time."""
    with ThreadPoolExecutor() as pool:
        list(pool.map(Server.start, servers))
