"""Stoker's server for a benchmark: `stoker serve`, started as a user would."""

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

import httpx

from bench import launching, settings
from bench.common import ROOT, Report

START_S = 180
STOP_S = 60
IMPORTED = {"PYTHONPATH": str(ROOT)}
"""Environment that selects the code of this checkout, regardless of installed versions."""


class Server:
    """A started server.

    Args:
        imported: environment that selects the imported code, also for the command line.
    """

    def __init__(
        self,
        process: "subprocess.Popen[bytes]",
        data_dir: Path,
        log_path: Path,
        imported: Mapping[str, str] = IMPORTED,
    ) -> None:
        self._process = process
        self.data_dir = data_dir
        self.log_path = log_path
        self.imported = imported
        self.base_url = self._announced()

    @property
    def pid(self) -> int:
        return self._process.pid

    def client(self, key: str = "") -> httpx.Client:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        # The connection has no TLS to verify, and loading the system's certificates costs 70 ms per
        # client.
        return httpx.Client(
            base_url=self.base_url, headers=headers, timeout=120, verify=False, trust_env=False
        )

    def account_key(self, name: str) -> str:
        """Returns the key of a new account."""
        operator_key = (self.data_dir / "operator-key").read_text().strip()
        with self.client(operator_key) as operator:
            account = operator.post("/v1/accounts", json={"name": name}).raise_for_status().json()
            body = {"scope": "account", "account_id": account["id"]}
            return operator.post("/v1/api-keys", json=body).raise_for_status().json()["key"]

    def wait_ready(self) -> None:
        deadline = time.monotonic() + START_S
        with self.client() as client:
            while time.monotonic() < deadline:
                if client.get("/ready").status_code == 200:
                    return
                time.sleep(0.05)
        raise RuntimeError(f"the server is not ready:\n{self.log_path.read_text()[-4000:]}")

    def stop(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_S)

    def _announced(self) -> str:
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline and self._process.poll() is None:
            with contextlib.suppress(FileNotFoundError, json.JSONDecodeError):
                return json.loads((self.data_dir / "server.json").read_text())["base_url"]
            time.sleep(0.02)
        raise RuntimeError(f"the server did not start:\n{self.log_path.read_text()[-4000:]}")


@contextlib.contextmanager
def running(
    report: Report,
    folder: Path,
    *,
    side: str = "ours",
    imported: Mapping[str, str] = IMPORTED,
    **given: Any,
) -> Generator[Server]:
    """Starts a server with its data below `folder` and with these settings.

    Args:
        side: name of the server in the report.
        imported: environment that selects the imported code.
    """
    folder.mkdir(parents=True, exist_ok=True)
    data_dir, log_path = folder / "data", folder / "server.log"
    # The file may be left from a server that has ended.
    (data_dir / "server.json").unlink(missing_ok=True)
    flags: dict[str, Any] = {"port": 0, "data_dir": data_dir}
    command = [sys.executable, "-m", "stoker", "serve", "--port", "0", "--data-dir", data_dir]
    # The folder has no .env file, which would be read.
    with launching.started(
        report, side, command, settings.variables(given) | imported, log_path
    ) as process:
        report.settings[side]["settings"] = settings.of_server(flags | given)
        server = Server(process, data_dir, log_path, imported)
        try:
            yield server
        finally:
            server.stop()
