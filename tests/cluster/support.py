"""`stoker cluster up` in a process of its own, as whoever types it has it."""

import json
import time
from pathlib import Path
from typing import Any, ClassVar

import httpx
import psutil

from tests.support.server import Server

PATIENCE_S = 120.0
SHOWN_BYTES = 3_000


class Cluster(Server):
    state: ClassVar[str] = "cluster.json"
    address: ClassVar[str] = "gateways"

    def __init__(self, data_dir: Path, *options: str, **env: str) -> None:
        super().__init__(data_dir, "cluster", "up", *options, **env)
        self.gateways: list[str] = []

    def start(self, timeout: float = 180, port: int = 0) -> "Cluster":
        super().start(timeout, port)
        self.gateways = self.said()["gateways"]
        # What a server's helpers ask is asked of the first one.
        self.base_url = self.gateways[0]
        return self

    def start_with(self, *options: str) -> "Cluster":
        """Start it again, with other options than before."""
        self._command = ("cluster", "up", *options)
        return self.start()

    def said(self) -> dict[str, Any]:
        """What cluster.json says now."""
        return json.loads((self.data_dir / self.state).read_text())

    def on_each(self, client: httpx.Client) -> list[httpx.Client]:
        """Clients of all gateways, with one's key."""
        key = client.headers["authorization"].removeprefix("Bearer ")
        return [self.client(key, url) for url in self.gateways]

    def client(self, key: str | None = None, base_url: str = "", **kwargs: Any) -> httpx.Client:
        client = super().client(key, **kwargs)
        client.base_url = base_url or self.base_url
        return client

    def processes(self) -> list[psutil.Process]:
        """All that have come of the command, without itself."""
        assert self.process
        return psutil.Process(self.process.pid).children(recursive=True)

    def last_lines(self) -> str:
        logs = sorted((self.data_dir / "logs").glob("*.log"))
        ends = [f"== {one.name}\n{one.read_text()[-SHOWN_BYTES:]}" for one in logs]
        return "\n".join([super().last_lines(), *ends])


def left(processes: list[psutil.Process], within_s: float = 0) -> list[psutil.Process]:
    """Those that are still there then."""
    gone_by = time.monotonic() + within_s
    while True:
        found = [one for one in processes if _is_there(one)]
        if not found or time.monotonic() >= gone_by:
            return found
        time.sleep(0.05)


def _is_there(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
