"""Starts the real server in a separate process and stops it by its process id."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import httpx

from stoker.base.config import Settings
from stoker.server.telemetry.loop_watch import HELD
from tests.support import contract, template, tiers

if TYPE_CHECKING:
    from tests.support import on_nodes

INSTALLED = Path(__file__).parents[2] / ".venv-install" / "bin" / "python"
"""Python of the environment that users have. `make install` alone creates it, and so does `make
test`.
"""
RUNTIME = os.environ.get("STOKER_TEST_RUNTIME", "")
"""Runtime of the tests' servers. With `nodes` or `ray`, each server is a gateway with a node that
uses this runtime. See `tests.support.on_nodes`.
"""
ON_NODES = RUNTIME != ""
# The users' environment lacks the PostgreSQL driver, which is an extra.
USERS = str(INSTALLED if INSTALLED.exists() and not ON_NODES else sys.executable)
ONE_THREAD = {"STOKER_REPLICA_THREADS": "1"}
"""Limits replicas to one thread. With such small models, more threads would only wait for each
other.
"""


STEP_LIMIT = {"STOKER_LOOP_STEP_LIMIT_MS": "100"}
"""Maximum processor time of an event loop step."""


NO_HUB = {"STOKER_HUB_ENDPOINT": "http://127.0.0.1:9"}
"""Hub address without a listener, so that no test leaves this machine."""


class Server:
    started: ClassVar[list["Server"]] = []
    """All servers of this process."""
    state: ClassVar[str] = "server.json"
    """File in the data folder that appears once the server runs."""
    address: ClassVar[str] = "base_url"
    """Field of the state file with the server's address."""

    def __init__(
        self, data_dir: Path, *command: str, python: str = sys.executable, **env: str
    ) -> None:
        self.data_dir = data_dir
        self.log = data_dir.parent / f"{data_dir.name}.log"
        self._command = command or ("serve",)
        self._python = python
        self._env = env
        self.process: subprocess.Popen[bytes] | None = None
        self.base_url = ""
        self._read_to = 0
        self._behind: on_nodes.Behind | None = None
        Server.started.append(self)

    def held_loop(self) -> list[str]:
        """Returns the lines, logged since the last call, about event loop steps that computed for
        too long.
        """
        unread = self._unread()
        # An incomplete last line is left for the next call.
        whole = unread[: unread.rfind(b"\n") + 1]
        self._read_to += len(whole)
        return [line.decode() for line in whole.splitlines() if HELD.encode() in line]

    def last_lines(self) -> str:
        """Returns the last errors and the end of the log, since the last call of `held_loop`, of
        the server and its replicas. The errors come first, because CI shows only the beginning.
        """
        unread = self._unread()
        errors = [line for line in unread.splitlines() if b'"level": "error"' in line]
        return b"\n".join([*errors[-3:], unread[-4_000:]]).decode(errors="replace")

    def _unread(self) -> bytes:
        # Called after each test for each server.
        try:
            if self.log.stat().st_size <= self._read_to:
                return b""
        except FileNotFoundError:
            return b""
        with self.log.open("rb") as log:
            log.seek(self._read_to)
            return log.read()

    def start(self, timeout: float = 180, port: int = 0) -> "Server":
        from tests.support import on_nodes

        tiers.require(tiers.SYSTEM)
        if self._command[0] in ("serve", "demo") and on_nodes.is_asked_for(self._env):
            self._behind = self._behind or on_nodes.Behind(self.data_dir, self._env)
            self._behind.start()
        (self.data_dir / self.state).unlink(missing_ok=True)
        arguments = [*self._command, "--port", str(port), "--data-dir", str(self.data_dir)]
        with self.log.open("ab") as log:
            settings = {
                **ONE_THREAD,
                **STEP_LIMIT,
                **NO_HUB,
                **self._env,
                **(self._behind.env if self._behind else {}),
            }
            env = {**os.environ, **settings}
            if template.can_fork(arguments, self._python, settings):
                self.process = template.Forked("stoker", arguments, log, env)
            else:
                self.process = subprocess.Popen(
                    [self._python, "-m", "stoker", *arguments], stdout=log, stderr=log, env=env
                )
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                break
            with contextlib.suppress(FileNotFoundError, json.JSONDecodeError):
                self.base_url = json.loads((self.data_dir / self.state).read_text())[self.address]
                return self
            time.sleep(0.02)
        self.stop()
        raise RuntimeError(f"the server did not start:\n{self.log.read_text()[-4000:]}")

    def restart(self) -> None:
        """Starts the server again on its previous port."""
        self.start(port=int(self.base_url.rpartition(":")[2]))

    @property
    def settings(self) -> Settings:
        """Settings for direct access to the server's stored data from outside its process."""
        return Settings(data_dir=self.data_dir, **(self._behind.shared if self._behind else {}))

    @property
    def runs_in(self) -> Path:
        """Data folder of the process that runs the models: the node or the server."""
        return self._behind.node.data_dir if self._behind else self.data_dir

    @property
    def operator_key(self) -> str:
        return (self.data_dir / "operator-key").read_text().strip()

    def client(self, key: str | None = None, **kwargs) -> httpx.Client:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        # The connection has no TLS to verify, and loading the system's certificates costs 70 ms per
        # client.
        return contract.Client(
            base_url=self.base_url, headers=headers, timeout=120, verify=False, **kwargs
        )

    def account(self, name: str = "test") -> httpx.Client:
        """Returns a client with a new account's key."""
        with self.client(self.operator_key) as operator:
            account = operator.post("/v1/accounts", json={"name": name}).raise_for_status().json()
            key = operator.post(
                "/v1/api-keys", json={"scope": "account", "account_id": account["id"]}
            ).raise_for_status()
        client = self.client(key.json()["key"])
        client.account_id = account["id"]  # type: ignore[attr-defined]
        return client

    def wait_ready(self, timeout: float = 180) -> None:
        deadline = time.monotonic() + timeout
        with self.client() as client:
            while time.monotonic() < deadline:
                if client.get("/ready").status_code == 200:
                    return
                time.sleep(0.1)
        raise RuntimeError(f"the server is not ready:\n{self.log.read_text()[-4000:]}")

    def kill(self) -> None:
        """Sends SIGKILL, with the effect of a power cut."""
        if self.process:
            self.process.kill()
            self.process.wait()

    def stop(self, timeout: float = 60) -> int:
        if self.process is None:
            return 0
        if self._behind:
            self._behind.stop()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(timeout)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        return self.process.returncode


PAGES = ("https://chat.example", "http://localhost:3000")
"""Origins of the pages that may read answers of the fixture `gateway`."""
NAMES = ("127.0.0.1", "test", "models.example", "*.inner.example", "www.example")
"""Host names that the fixture `gateway` accepts."""
WITHOUT_MODELS = {"STOKER_PRELOAD": "false"}
"""Setting for a server that runs no model. Importing the engines costs ten seconds of a core."""


@contextlib.contextmanager
def running(
    data_dir: Path, *command: str, python: str = sys.executable, **env: str
) -> Iterator[Server]:
    server = Server(data_dir, *command, python=python, **env)
    try:
        yield server.start()
    finally:
        server.stop()
