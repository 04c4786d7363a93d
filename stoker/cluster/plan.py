"""What a fleet consists of, and the settings of each of its processes."""

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stoker.base.config import MIB, Settings
from stoker.client.errors import WrongUseError
from stoker.cluster import ray
from stoker.cluster.member import Program
from stoker.runtime.machine_memory import SHARE, machine_bytes
from stoker.server.node import node_id

CONNECTIONS = 20
"""To the database, of each of them at most."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    settings: Settings
    """As one server would have them; `data_dir` is the fleet's folder."""
    nodes: int
    gateways: int
    has_demo: bool = False
    has_ray: bool = False
    """Ray places the leases."""

    @property
    def runtime(self) -> str:
        """Of the gateways and of the node hosts, as STOKER_RUNTIME names it."""
        return "ray" if self.has_ray else "nodes"

    @property
    def folder(self) -> Path:
        return self.settings.data_dir.resolve()

    @property
    def connections(self) -> int:
        return CONNECTIONS * (self.nodes + self.gateways + 1)

    @property
    def given_database_url(self) -> str | None:
        """Of a PostgreSQL that is there. Raises `WrongUseError` where it is another database."""
        url = self.settings.database_url
        if url and not url.startswith("postgresql"):
            raise WrongUseError(
                "A fleet needs a PostgreSQL, and STOKER_DATABASE_URL names another database.",
                hint="Without the setting, one is started for it.",
            )
        return url

    def data_dir(self, name: str) -> Path:
        """Of a gateway or a node."""
        return self.folder / name

    def log(self, name: str) -> Path:
        return self.folder / "logs" / f"{name}.log"

    @property
    def memory_mib(self) -> int:
        """What the replicas of each node may hold."""
        mine = self.settings.memory_budget_mib
        return max(1, mine or int(machine_bytes() * SHARE) // MIB // self.nodes)

    def node_programs(self, database_url: str) -> list[Program]:
        settings, env = self.settings, self._shared(database_url)
        cores = len(os.sched_getaffinity(0))
        env |= {
            "STOKER_MEMORY_BUDGET_MIB": str(self.memory_mib),
            "STOKER_REPLICA_THREADS": str(settings.replica_threads or max(1, cores // self.nodes)),
        }
        return [
            ours(
                name,
                ("node", "host", "--port", "0", "--name", name),
                self.data_dir(name),
                {**env, **self._metrics(self.gateways + number)},
                "node.json",
            )
            for number, name in enumerate(_names("node", self.nodes))
        ]

    def ray_programs(
        self, database_url: str, token: str, port: int, folders: Sequence[Path]
    ) -> list[Program]:
        """Ray's head, one on each node, and last who places leases.

        Args:
            port: of the head.
            folders: one for each of the first.
        """
        env, address = ray.environment(token, self._shared(database_url)), f"127.0.0.1:{port}"
        own = [ray.head(port, folders[0], env, host="127.0.0.1")]
        for name, folder in zip(_names("node", self.nodes), folders[1:], strict=True):
            own.append(
                ray.raylet(
                    f"ray-{name}",
                    address,
                    node_id=node_id(self.data_dir(name)),
                    memory_bytes=self.memory_mib * MIB,
                    folder=folder,
                    env=env,
                    host="127.0.0.1",
                )
            )
        return [*own, ray.placer(address, self.folder / "placer", env)]

    def gateway_programs(self, database_url: str) -> list[Program]:
        env = self._shared(database_url)
        return [
            ours(
                name,
                ("serve", "--port", str(self._port(number))),
                self.data_dir(name),
                {**env, **self._metrics(number)},
                "server.json",
            )
            for number, name in enumerate(_names("gateway", self.gateways))
        ]

    def _shared(self, database_url: str) -> dict[str, str]:
        blobs = self.settings.blob_url or (self.folder / "blobs").as_uri()
        return {
            **os.environ,
            "STOKER_DATABASE_URL": database_url,
            "STOKER_BLOB_URL": blobs,
            "STOKER_RUNTIME": self.runtime,
        }

    def _port(self, number: int) -> int:
        """The first one's is as it was asked for; the others', where it is free, a next one."""
        first = self.settings.port
        port = first + number
        if number == 0:
            return first
        return port if first and port < 1 << 16 and _is_free(self.settings.host, port) else 0

    def _metrics(self, number: int) -> Mapping[str, str]:
        first = self.settings.metrics_port
        return {} if first is None else {"STOKER_METRICS_PORT": str(first + number)}


def ours(
    name: str, command: Sequence[str], data_dir: Path, env: Mapping[str, str], state: str
) -> Program:
    """A command of ours that works in a folder.

    Args:
        state: the file of the folder by which it says that it is there.
    """
    given = ("-m", "stoker", *command, "--data-dir", str(data_dir))
    return Program(name=name, command=given, env=env, state=data_dir / state)


def _names(kind: str, count: int) -> list[str]:
    return [f"{kind}-{number}" for number in range(1, count + 1)]


def _is_free(host: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except OSError:
            return False
    return True
