"""Our own server for a benchmark: filled with models, and asked how it runs them."""

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
from bench.server import IMPORTED, Server, running
from stoker.models.tasks.registry import GENERATING
from stoker.wire.protocol import VERDICT, Execution

DRIVEN_S = 30
"""A model that is not converted after so much work is not going to be."""
DRIVERS = 4
CONVERTED_S = 300
QUIET_S = 20
"""A conversion that was not taken up by then, and of which nothing more is tried, is not used."""


class Service:
    """A running server and an account's key for it.

    Args:
        report: gets all that is set of a deployment, beside what the server's side has there.
        key: an account's that there is; else one is made.
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
        """`stoker artifacts push`, in a process of its own. Raises where it fails."""
        given = {**IMPORTED, "STOKER_BASE_URL": self.base_url, "STOKER_API_KEY": self.key}
        done = subprocess.run(
            [sys.executable, "-m", "stoker", "artifacts", "push", folder, "--json", *arguments],
            cwd=self.server.data_dir,
            env=launching.environment(given),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=120,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"the push failed:\n{done.stderr.decode()[-2000:]}")
        return json.loads(done.stdout)

    def deploy(self, folder: Path, model: str, pipeline: str, **wish: Any) -> str:
        """Push and deploy a model folder, with `wish` and else as by itself; its id."""
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
        """`stop` or `start` a deployment and wait for its status."""
        self.api.post(f"/v1/deployments/{deployment}/{action}").raise_for_status()
        self.wait_status(deployment, status)

    def wait_status(self, deployment: str, status: str, timeout: float = 120) -> None:
        found: dict[str, Any] = {}
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            found = self.found(deployment)
            if found["status"] == status:
                return
            time.sleep(0.02)
        raise RuntimeError(f"the deployment is {found['status']}, not {status}: {found['message']}")

    def wait_engine(self, deployment: str, engine: str, timeout: float = 300) -> None:
        """Wait until a deployment's replica runs the model with an engine."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            if self._engines(deployment) == [engine]:
                return
            time.sleep(0.1)
        raise RuntimeError(f"it does not run with {engine}: {self.found(deployment)}")

    def wait_calibrated(self, deployment: str, timeout: float = 60) -> None:
        """Wait until a replica has measured its batch budget, which it does when idle."""
        engine = self.tell_engine(deployment)
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            new = self._budgets() - self._budgets_before[deployment]
            if any(key.startswith(f"{engine}-") for _, key in new):
                return
            time.sleep(0.1)

    def settle(self, deployment: str, path: str, bodies: Sequence[bytes]) -> Execution | None:
        """Work until a deployment runs as it will from then on; on what, if it was converted.

        Models are converted in the background once they were busy for a while, which is how a
        user gets them: so they are made busy, and the conversion is waited for.
        """
        self.wait_status(deployment, "ready")
        found = self.found(deployment)
        before = self._conversions()
        progress(f"{found['model']}: working until it is converted …")
        self._drive(path, bodies, lambda: self._conversions() > before)
        converted = self._adopted(deployment, before)
        if found["pipeline"] in GENERATING:
            self.tell_engine(deployment)
        else:
            self.wait_calibrated(deployment)
        return converted

    def tell_engine(self, deployment: str) -> str:
        """What runs a deployment now, which the report is told, too."""
        deadline = time.monotonic() + 10
        # It is ready a little before that is known.
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
        """Of the replicas that are ready."""
        found = self.found(deployment)
        return sorted({one["engine"] for one in found["workers"] if one["engine"]})

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
                    if any(one.done() for one in asking):
                        break
                    time.sleep(0.2)
            finally:
                is_over = True
        for one in asking:
            one.result()

    def _conversions(self) -> frozenset[Path]:
        """Folders of conversions that are done or on their way."""
        return frozenset((self.server.data_dir / "cache" / "openvino").glob("*/*"))

    def _adopted(self, deployment: str, before: frozenset[Path]) -> Execution | None:
        """The conversion that has begun since, once it is what runs; none, if it does not come to
        that: it is not possible, or no faster, or failed its trials.
        """
        deadline = time.monotonic() + CONVERTED_S
        seen, seen_at = (0, 0), time.monotonic()
        # One that fails may be removed.
        while begun := self._conversions() - before:
            (folder,) = begun
            if self._engines(deployment) == ["openvino"]:
                return _execution(folder)
            now = time.monotonic()
            files = _files(folder)
            if files != seen or not (folder / VERDICT).exists():
                seen, seen_at = files, now
            if now - seen_at > QUIET_S:
                return None
            if now > deadline:
                raise RuntimeError("the model was not converted in time")
            time.sleep(0.1)
        return None

    def _budgets(self) -> set[tuple[Path, str]]:
        """Of what is known how large its batches should be: the model's file, and the engine."""
        found: set[tuple[Path, str]] = set()
        for path in (self.server.data_dir / "cache").glob("batch-*.json"):
            # It may be on its way to the disk.
            with contextlib.suppress(json.JSONDecodeError):
                found |= {(path, key) for key in json.loads(path.read_text())}
        return found


def _execution(folder: Path) -> Execution:
    """What a replica adopted: the preferred one of those that passed their trials."""
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
    """How many there are, and when the last of them was written, in nanoseconds."""
    times = [0]
    for path in folder.rglob("*"):
        # Signs of life go as they come.
        with contextlib.suppress(FileNotFoundError):
            times.append(path.stat().st_mtime_ns)
    return len(times), max(times)


@contextlib.contextmanager
def serving(
    report: Report, folder: Path, *, side: str = "ours", **given: Any
) -> Generator[Service]:
    """A server with the settings given and else its own, ready to fork replicas."""
    with running(report, folder, side=side, **given) as server:
        server.wait_ready()
        service = Service(server, report, side)
        try:
            yield service
        finally:
            service.api.close()


def request_body(model: str, text: str) -> bytes:
    return json.dumps({"model": model, "inputs": text}).encode()
