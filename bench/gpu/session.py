"""One run of the GPU benchmark: the server, the bare loops, the card and the results."""

import contextlib
import os
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from bench import loops
from bench.common import ROOT, Report, progress
from bench.gpu import facts, load
from bench.gpu.card import DEVICE, Card
from bench.gpu.results import NOT_REACHED, Results, Row, Verdict
from bench.gpu.sizes import Sizes
from bench.server import running
from bench.service import Service

READY_S = 90
CLEAR_S = 15
LOG_LINES = 15
ON_GPU_MIB = 150
"""Growth of the card's used memory from which a replica counts as running on it."""


class MissingError(Exception):
    """Something that a row needs is not installed or not supported. The row is not measured."""


@dataclass
class Session:
    """What the groups of rows share."""

    sizes: Sizes
    place: Path
    """Folder for logs and data, which is removed at the end."""
    results: Results
    card: Card
    report: Report
    service: Service
    environment: Mapping[str, str]
    """Environment of all started processes, in addition to a user's."""
    base_bytes: int | None
    """Used memory of the card before the server started."""
    _bare: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    _loop: loops.Loop | None = None

    @property
    def has_gpu(self) -> bool:
        return self.base_bytes is not None and not self.sizes.is_tiny

    # --- bare loops

    def bare(self, task: str, **arguments: Any) -> Any:
        """Runs a task of `bench.gpu.bare`. Raises `RuntimeError` with its error."""
        if self._loop is None:
            command = [sys.executable, "-m", "bench.gpu.bare"]
            self._loop = self._bare.enter_context(
                loops.looping(
                    self.report,
                    "bare",
                    command,
                    self.environment,
                    self.place,
                    is_suspended=False,
                )
            )
        answer = self._loop.ask({"task": task, "arguments": arguments})
        if "error" in answer:
            raise RuntimeError(f"the bare loop failed: {answer['error']}")
        return answer["result"]

    @property
    def bare_pid(self) -> int:
        """Process id of the bare loops."""
        if self._loop is None:
            raise RuntimeError("the bare loops were not started")
        return self._loop.pid

    def end_bare(self) -> None:
        """Ends the bare loops' process, which frees its device context."""
        self._loop = None
        self._bare.close()

    # --- deployments

    def deploy(self, folder: Path, model: str, pipeline: str, **wish: Any) -> str:
        """Deploys a model as hot and waits until it is ready. Returns the deployment's id."""
        deployment = self.service.deploy(folder, model, pipeline, readiness="hot", **wish)
        self.wait(deployment, "ready")
        return deployment

    def wait(self, deployment: str, status: str, timeout: float = READY_S) -> None:
        """Waits for a status. Raises `RuntimeError` if the deployment failed or takes too long."""
        deadline = time.monotonic() + timeout
        state = self.service.found(deployment)
        while state["status"] != status:
            if state["status"] == "failed" or time.monotonic() > deadline:
                raise RuntimeError(
                    f"{state['model']} is {state['status']}, not {status}: "
                    f"{state['reason']} {state['message']}"
                )
            time.sleep(0.02)
            state = self.service.found(deployment)

    def load(self, path: str, bodies: Sequence[str], clients: int, seconds: float) -> load.Load:
        service = self.service
        return load.run(service.base_url, path, service.key, bodies, clients, seconds)

    def clear(self) -> None:
        """Deletes all deployments and waits for the end of their replicas, so that the next group
        has the card for itself.
        """
        clear(self.service)
        deadline = time.monotonic() + CLEAR_S
        while self.machine()["replicas"] and time.monotonic() < deadline:
            time.sleep(0.1)

    def machine(self) -> dict[str, Any]:
        """Returns the machine as an operator sees it."""
        key = (self.service.server.data_dir / "operator-key").read_text().strip()
        with self.service.server.client(key) as operator:
            return operator.get("/v1/machine").raise_for_status().json()

    def describe(self, deployment: str) -> dict[str, Any]:
        """Returns the facts of a deployment that explain its speed."""
        state = self.service.found(deployment)
        names = ("device", "dtype", "engine", "memory", "notices", "message")
        return {name: state.get(name) for name in names} | {"workers": state["workers"]}

    def require_gpu(self, deployment: str) -> None:
        """Raises `RuntimeError` if a deployment's replica runs on the CPU although there is a GPU.

        The worker's device counts if the server reports it, otherwise the growth of the card's used
        memory.
        """
        if not self.has_gpu:
            return
        devices = {worker.get("device") for worker in self.service.found(deployment)["workers"]}
        if None not in devices:
            if not all(str(device).startswith("cuda") for device in devices):
                raise RuntimeError(f"the replica runs on {', '.join(map(str, devices))}")
            return
        self.require_gpu_memory()

    def require_gpu_memory(self) -> None:
        """Raises `RuntimeError` if there is a GPU and no replica uses its memory."""
        if self.has_gpu and (self.grown_bytes or 0) < ON_GPU_MIB << 20:
            raise RuntimeError("the replica runs on the CPU: the card's used memory did not grow")

    @property
    def grown_bytes(self) -> int | None:
        """Growth of the card's used memory since before the server started. None without a GPU."""
        used = self.card.used_bytes() if self.has_gpu else None
        return None if used is None else used - (self.base_bytes or 0)

    # --- rows

    def done(self, row: Row, since: float, until: float | None = None, **details: Any) -> None:
        """Judges a measured row, and writes all results.

        Args:
            since: start of its load, by `time.monotonic`.
        """
        row.device = row.device or self.card.load(since, until)
        row.details |= details
        row.judge(is_tiny=self.sizes.is_tiny)
        self.results.save()
        shown = f"{row.stoker:.4g} {row.unit}" if row.stoker is not None else row.reason
        bare = f", bare {row.bare:.4g}" if row.bare is not None else ""
        progress(f"{row.name}: {shown}{bare}: {row.verdict} {row.wrong}")

    def fail(self, rows: Sequence[Row], reason: str, verdict: Verdict) -> None:
        """Gives the rows that were not reached a reason, and failed ones the replicas' logs."""
        missing = [row for row in rows if row.reason == NOT_REACHED]
        details = self._last_words() if missing and verdict is Verdict.FAILED else {}
        for row in missing:
            row.skip(reason, verdict)
            row.details |= details
            progress(f"{row.name}: {verdict}: {reason.splitlines()[0][:200]}")
        self.results.save()

    def _last_words(self) -> dict[str, Any]:
        """Returns the state and the last log lines of the server and of each deployment that failed
        or has workers.
        """
        words: dict[str, Any] = {"server_log": _tail(self.service.server.log_path)}
        with contextlib.suppress(httpx.HTTPError):
            for state in deployments(self.service.api):
                if state["status"] == "failed" or state["workers"]:
                    path = f"/v1/deployments/{state['id']}/logs"
                    lines = self.service.api.get(path, params={"tail": LOG_LINES}).json()
                    status = f"{state['status']}: {state['reason']} {state['message']}"
                    words[state["model"]] = {"status": status, "log": lines.get("data")}
        return words


def deployments(api: httpx.Client) -> list[dict[str, Any]]:
    """Returns all deployments of an account."""
    return api.get("/v1/deployments", params={"limit": 100}).raise_for_status().json()["data"]


def clear(service: Service) -> None:
    """Deletes all deployments of an account."""
    for deployment in deployments(service.api):
        service.api.delete(f"/v1/deployments/{deployment['id']}")


@contextlib.contextmanager
def opened(
    sizes: Sizes, place: Path, results: Results, settings: Mapping[str, str]
) -> Generator[Session]:
    """Starts a server with these settings and defaults otherwise.

    `stoker doctor` runs while the server imports its libraries.
    """
    environment = _environment(sizes)
    limits = {"replica_threads": 1} if sizes.is_tiny else {}
    report = Report("gpu", "GPU benchmark")
    with contextlib.ExitStack() as stack:
        card = stack.enter_context(Card())
        base_bytes = None if sizes.is_tiny else card.used_bytes()
        server = stack.enter_context(
            running(report, place, imported=environment, **limits, **settings)
        )
        with ThreadPoolExecutor(1) as threads:
            doctor = threads.submit(facts.doctor, environment)
            server.wait_ready()
            results.facts["doctor"] = doctor.result()
        service = Service(server, report)
        stack.callback(service.api.close)
        session = Session(sizes, place, results, card, report, service, environment, base_bytes)
        stack.callback(session.end_bare)
        yield session


def _environment(sizes: Sizes) -> dict[str, str]:
    """Returns the environment of all started processes, in addition to a user's."""
    # Packages that were installed without an environment are found by this variable.
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {"PYTHONPATH": os.pathsep.join(paths)}
    if sizes.is_tiny:
        # The tests share two cores.
        return environment | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    return environment | {"CUDA_VISIBLE_DEVICES": DEVICE, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def _tail(path: Path) -> list[str]:
    return path.read_text(errors="replace").splitlines()[-LOG_LINES:]
