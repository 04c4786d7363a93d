"""What a fleet consists of, and the settings of each of its processes."""

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from stoker.client.errors import WrongUseError
from stoker.cluster.member import Program
from stoker.config import MIB, Settings
from stoker.runtime.machine_memory import SHARE, machine_bytes

CONNECTIONS = 20
"""To the database, of each of them at most."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    settings: Settings
    """As one server would have them; `data_dir` is the fleet's folder."""
    nodes: int
    gateways: int
    has_demo: bool = False

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

    def log(self, name: str) -> Path:
        return self.folder / "logs" / f"{name}.log"

    def node_programs(self, database_url: str) -> list[Program]:
        settings, env = self.settings, self._shared(database_url)
        memory_mib = settings.memory_budget_mib or int(machine_bytes() * SHARE) // MIB // self.nodes
        cores = len(os.sched_getaffinity(0))
        env |= {
            "STOKER_MEMORY_BUDGET_MIB": str(max(1, memory_mib)),
            "STOKER_REPLICA_THREADS": str(settings.replica_threads or max(1, cores // self.nodes)),
        }
        return [
            Program(
                name=name,
                command=("node", "host", "--port", "0", "--name", name),
                data_dir=self.folder / name,
                env={**env, **self._metrics(self.gateways + number)},
                state="node.json",
            )
            for number, name in enumerate(_names("node", self.nodes))
        ]

    def gateway_programs(self, database_url: str) -> list[Program]:
        env = {**self._shared(database_url), "STOKER_RUNTIME": "nodes"}
        return [
            Program(
                name=name,
                command=("serve", "--port", str(self._port(number))),
                data_dir=self.folder / name,
                env={**env, **self._metrics(number)},
                state="server.json",
            )
            for number, name in enumerate(_names("gateway", self.gateways))
        ]

    def _shared(self, database_url: str) -> dict[str, str]:
        blobs = self.settings.blob_url or (self.folder / "blobs").as_uri()
        return {
            **os.environ,
            "STOKER_DATABASE_URL": database_url,
            "STOKER_BLOB_URL": blobs,
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
