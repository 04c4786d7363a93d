"""Processes of a fleet, and the settings of each."""

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
"""Maximum number of database connections per process."""


@dataclass(frozen=True, kw_only=True)
class FleetPlan:
    settings: Settings
    """Settings as for a single server. `data_dir` is the fleet's folder."""
    nodes: int
    gateways: int
    has_demo: bool = False
    has_ray: bool = False
    """True if Ray places the leases."""

    @property
    def runtime(self) -> str:
        """Runtime of the gateways and node hosts, as a value of STOKER_RUNTIME."""
        return "ray" if self.has_ray else "nodes"

    @property
    def folder(self) -> Path:
        return self.settings.data_dir.resolve()

    @property
    def connections(self) -> int:
        return CONNECTIONS * (self.nodes + self.gateways + 1)

    @property
    def given_database_url(self) -> str | None:
        """URL of an existing PostgreSQL. None if not set. Raises `WrongUseError` if it is another
        database.
        """
        url = self.settings.database_url
        if url and not url.startswith("postgresql"):
            raise WrongUseError(
                "A fleet needs a PostgreSQL, but STOKER_DATABASE_URL names another database.",
                hint="Unset it to start a PostgreSQL for the fleet.",
            )
        return url

    def data_dir(self, name: str) -> Path:
        """Returns the data folder of a gateway or a node."""
        return self.folder / name

    def log(self, name: str) -> Path:
        return self.folder / "logs" / f"{name}.log"

    @property
    def memory_mib(self) -> int:
        """Memory budget of the replicas of each node in MiB."""
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
        """Returns the programs of Ray's head, of Ray on each node, and last of the placer.

        Args:
            port: port of the head.
            folders: one folder for each program except the placer.
        """
        env, address = ray.environment(token, self._shared(database_url)), f"127.0.0.1:{port}"
        programs = [ray.head(port, folders[0], env, host="127.0.0.1")]
        for name, folder in zip(_names("node", self.nodes), folders[1:], strict=True):
            programs.append(
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
        return [*programs, ray.placer(address, self.folder / "placer", env)]

    def gateway_programs(self, database_url: str) -> list[Program]:
        # Several gateways use the cores already.
        env = self._shared(database_url) | {"STOKER_WORKERS": str(self.settings.workers or 1)}
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
        """Returns the port of a gateway. The first uses the configured port. The others use the
        following ports if these are free, otherwise 0.
        """
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
    """Returns a Stoker command that works in a folder.

    Args:
        state: the file in the folder that the command writes when it has started.
    """
    arguments = ("-m", "stoker", *command, "--data-dir", str(data_dir))
    return Program(name=name, command=arguments, env=env, state=data_dir / state)


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
