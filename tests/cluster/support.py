"""Runs `stoker cluster up` in a separate process, as a user does."""

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
        # The helpers of `Server` send their requests to the first gateway.
        self.base_url = self.gateways[0]
        return self

    def start_with(self, *options: str) -> "Cluster":
        """Starts the fleet again with other options."""
        self._command = ("cluster", "up", *options)
        return self.start()

    def said(self) -> dict[str, Any]:
        """Returns the current content of cluster.json."""
        return json.loads((self.data_dir / self.state).read_text())

    def on_each(self, client: httpx.Client) -> list[httpx.Client]:
        """Returns a client of each gateway, with the key of `client`."""
        key = client.headers["authorization"].removeprefix("Bearer ")
        return [self.client(key, url) for url in self.gateways]

    def client(self, key: str | None = None, base_url: str = "", **kwargs: Any) -> httpx.Client:
        client = super().client(key, **kwargs)
        client.base_url = base_url or self.base_url
        return client

    def processes(self) -> list[psutil.Process]:
        """Returns all descendants of the command's process, without that process."""
        assert self.process
        return psutil.Process(self.process.pid).children(recursive=True)

    def last_lines(self) -> str:
        logs = sorted((self.data_dir / "logs").glob("*.log"))
        ends = [f"== {log.name}\n{log.read_text()[-SHOWN_BYTES:]}" for log in logs]
        return "\n".join([super().last_lines(), *ends])


def left(processes: list[psutil.Process], within_s: float = 0) -> list[psutil.Process]:
    """Returns the processes that still run after `within_s` seconds."""
    gone_by = time.monotonic() + within_s
    while True:
        running = [process for process in processes if _is_there(process)]
        if not running or time.monotonic() >= gone_by:
            return running
        time.sleep(0.05)


def _is_there(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
