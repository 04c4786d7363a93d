"""Stoker's server for a benchmark, with models, and with access to its state."""

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import msgspec

from bench import launching, settings
from bench.client import Connection
from bench.common import Report, progress
from bench.server import Server, running
from stoker.models.tasks.registry import GENERATING
from stoker.wire.conversions import VERDICT
from stoker.wire.protocol import Execution

DRIVEN_S = 30
"""Seconds of work after which a model that is not being converted will not be converted."""
DRIVERS = 4
CONVERTED_S = 300
QUIET_S = 20
"""Seconds without progress after which a finished conversion that is not used will not be used."""


class Service:
    """A running server and an account's key for it.

    Args:
        report: receives the settings of deployments, in addition to those of the server's side.
        key: key of an existing account. By default, a new account is created.
    """

    def __init__(self, server: Server, report: Report, side: str = "ours", key: str = "") -> None:
        self.server = server
        self._report = report
        self._side = side
        self.key = key or server.account_key("bench")
        self.api: httpx.Client = server.client(self.key)
        self._budgets_before: dict[str, set[tuple[Path, str]]] = {}

    @property
    def base_url(self) -> str:
        return self.server.base_url

    @property
    def pid(self) -> int:
        return self.server.pid

    def push(self, folder: Path, *arguments: str) -> dict[str, Any]:
        """Runs `stoker artifacts push` in a separate process. Raises `RuntimeError` if it fails."""
        address = {"STOKER_BASE_URL": self.base_url, "STOKER_API_KEY": self.key}
        variables = {**self.server.imported, **address}
        done = subprocess.run(
            [sys.executable, "-m", "stoker", "artifacts", "push", folder, "--json", *arguments],
            cwd=self.server.data_dir,
            env=launching.environment(variables),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=120,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"the push failed:\n{done.stderr.decode()[-2000:]}")
        return json.loads(done.stdout)

    def deploy(self, folder: Path, model: str, pipeline: str, **wish: Any) -> str:
        """Pushes and deploys a model folder with the fields of `wish` and defaults otherwise.
        Returns the deployment's id.
        """
        artifact = self.push(folder, "--name", model, "--pipeline", pipeline)
        self._tell({"differing": settings.of_deployment(wish)}, model)
        body = {"model": model, "artifact_id": artifact["id"], **wish}
        before = self._budgets()
        deployment = self.api.post("/v1/deployments", json=body).raise_for_status().json()["id"]
        self._budgets_before[deployment] = before
        return deployment

    def connect(self, path: str) -> Connection:
        return Connection(self.base_url, path, self.key)

    def found(self, deployment: str) -> dict[str, Any]:
        return self.api.get(f"/v1/deployments/{deployment}").raise_for_status().json()

    def change(self, deployment: str, action: str, status: str) -> None:
        """Stops or starts a deployment and waits for its status."""
        self.api.post(f"/v1/deployments/{deployment}/{action}").raise_for_status()
        self.wait_status(deployment, status)

    def wait_status(self, deployment: str, status: str, timeout: float = 120) -> None:
        state: dict[str, Any] = {}
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            state = self.found(deployment)
            if state["status"] == status:
                return
            time.sleep(0.02)
        raise RuntimeError(f"the deployment is {state['status']}, not {status}: {state['message']}")

    def wait_engine(self, deployment: str, engine: str, timeout: float = 300) -> None:
        """Waits until a deployment's replica runs the model with an engine."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            if self._engines(deployment) == [engine]:
                return
            time.sleep(0.1)
        raise RuntimeError(f"it does not run with {engine}: {self.found(deployment)}")

    def wait_calibrated(self, deployment: str, timeout: float = 60) -> None:
        """Waits until a replica has measured its batch budget, which it does when idle."""
        engine = self.tell_engine(deployment)
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            new = self._budgets() - self._budgets_before[deployment]
            if any(key.startswith(f"{engine}-") for _, key in new):
                return
            time.sleep(0.1)

    def settle(self, deployment: str, path: str, bodies: Sequence[bytes]) -> Execution | None:
        """Sends work until a deployment has its final configuration. Returns its conversion, if
        any.

        Models are converted in the background after they were busy for a while, as for a user. This
        method makes them busy and waits for the conversion.
        """
        self.wait_status(deployment, "ready")
        state = self.found(deployment)
        before = self._conversions()
        progress(f"{state['model']}: working until it is converted …")
        self._drive(path, bodies, lambda: self._conversions() > before)
        converted = self._adopted(deployment, before)
        if state["pipeline"] in GENERATING:
            self.tell_engine(deployment)
        else:
            self.wait_calibrated(deployment)
        return converted

    def tell_engine(self, deployment: str) -> str:
        """Returns the engine of a deployment and records it in the report."""
        deadline = time.monotonic() + 10
        # The engine becomes known shortly after the deployment is ready.
        while not (engines := self._engines(deployment)) and time.monotonic() < deadline:
            time.sleep(0.05)
        if not engines:
            raise RuntimeError(f"nothing runs it: {self.found(deployment)['message']}")
        (engine,) = engines
        model = self.found(deployment)["model"]
        progress(f"{model}: runs with {engine}")
        self._tell({"runs_with": engine}, model)
        return engine

    def _tell(self, facts: dict[str, Any], model: str) -> None:
        deployments = self._report.settings[self._side].setdefault("deployments", {})
        deployments[model] = deployments.get(model, {}) | facts

    def _engines(self, deployment: str) -> list[str]:
        """Returns the engines of the ready replicas."""
        state = self.found(deployment)
        return sorted({worker["engine"] for worker in state["workers"] if worker["engine"]})

    def _drive(self, path: str, bodies: Sequence[bytes], ended: Callable[[], bool]) -> None:
        deadline = time.monotonic() + DRIVEN_S
        is_over = False

        def ask(number: int) -> None:
            at = number
            with self.connect(path) as connection:
                while not is_over:
                    connection.post(bodies[at % len(bodies)])
                    at += DRIVERS

        with ThreadPoolExecutor(DRIVERS) as threads:
            asking = [threads.submit(ask, number) for number in range(DRIVERS)]
            try:
                while time.monotonic() < deadline and not ended():
                    if any(future.done() for future in asking):
                        break
                    time.sleep(0.2)
            finally:
                is_over = True
        for future in asking:
            future.result()

    def _conversions(self) -> frozenset[Path]:
        """Returns the folders of conversions that are finished or in progress."""
        return frozenset((self.server.data_dir / "cache" / "openvino").glob("*/*"))

    def _adopted(self, deployment: str, before: frozenset[Path]) -> Execution | None:
        """Waits until the conversion that has begun since is in use, and returns it. Returns None
        if it is not possible, is not faster or failed its trials.
        """
        deadline = time.monotonic() + CONVERTED_S
        last_files, seen_at = (0, 0), time.monotonic()
        # A failed conversion may be removed.
        while begun := self._conversions() - before:
            (folder,) = begun
            if self._engines(deployment) == ["openvino"]:
                return _execution(folder)
            now = time.monotonic()
            files = _files(folder)
            if files != last_files or not (folder / VERDICT).exists():
                last_files, seen_at = files, now
            if now - seen_at > QUIET_S:
                return None
            if now > deadline:
                raise RuntimeError("the model was not converted in time")
            time.sleep(0.1)
        return None

    def _budgets(self) -> set[tuple[Path, str]]:
        """Returns the known batch budgets by model file and engine."""
        budgets: set[tuple[Path, str]] = set()
        for path in (self.server.data_dir / "cache").glob("batch-*.json"):
            # The file may be partly written.
            with contextlib.suppress(json.JSONDecodeError):
                budgets |= {(path, key) for key in json.loads(path.read_text())}
        return budgets


def _execution(folder: Path) -> Execution:
    """Returns the execution that a replica uses: the preferred one that passed its trials."""
    passed = [
        path
        for path in sorted(folder.glob("trial-*.json"))
        if json.loads(path.read_text())["passed"]
    ]
    _, precision, place = passed[0].stem.split("-", 2)
    cache = folder / f"compiled-{place}"
    return msgspec.convert(
        {"folder": str(folder), "precision": precision, "cache_dir": str(cache)}, Execution
    )


def _files(folder: Path) -> tuple[int, int]:
    """Returns the number of files, and the time of the last write in nanoseconds."""
    times = [0]
    for path in folder.rglob("*"):
        # Heartbeat files appear and disappear.
        with contextlib.suppress(FileNotFoundError):
            times.append(path.stat().st_mtime_ns)
    return len(times), max(times)


@contextlib.contextmanager
def serving(
    report: Report, folder: Path, *, side: str = "ours", **given: Any
) -> Generator[Service]:
    """Starts a server with these settings and defaults otherwise, ready to fork replicas."""
    with running(report, folder, side=side, **given) as server:
        server.wait_ready()
        service = Service(server, report, side)
        try:
            yield service
        finally:
            service.api.close()


def request_body(model: str, text: str) -> bytes:
    return json.dumps({"model": model, "inputs": text}).encode()
