"""Throughput: closed loops of 1, 4 and 16 clients, against what people run instead."""

import contextlib
import importlib.util
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil

from bench.client import Connection, HttpError
from bench.common import ROOT, Report, cores, percentile, scratch
from bench.inprocess import in_process
from bench.processes import awake, cpu_seconds, end, free_port, suspend, tree
from bench.service import serving
from bench.workloads import WORKLOADS, Body, Workload

MODEL = "measured"
REQUESTS = {1: 12, 4: 6, 16: 3}
"""Clients → requests of each, a round."""
OFFLINE_REQUESTS = 32
LOAD_S = 4
"""A load ends early after so long: on a slow machine there are fewer requests, not more time."""
SAMPLE_S = 0.2
START_S = 60


@dataclass(frozen=True)
class Contender:
    """A server that runs, and how to ask it."""

    name: str
    pid: int
    connect: Callable[[], Connection]
    body: Callable[[Body], bytes]


@dataclass(frozen=True)
class Measured:
    seconds: float
    latencies: list[float]
    errors: int
    cpu_seconds: float
    peak_bytes: int


def of(name: str) -> Callable[[int], Report]:
    """The benchmark of a workload."""
    return lambda rounds: run(WORKLOADS[name], name, rounds)


def run(workload: Workload, name: str, rounds: int) -> Report:
    name = "throughput" if name == "text" else f"throughput_{name}"
    report = Report(name, f"{workload.title} over HTTP, closed loops")
    folder = workload.folder()
    with scratch() as place, contextlib.ExitStack() as stack:
        ours, converted = stack.enter_context(_ours(place, workload, folder))
        # The limit first: nothing runs beside it, and ours is idle.
        for _ in range(rounds):
            _offline(report, workload, folder, converted)
        contenders = [ours]
        contenders += [
            stack.enter_context(_peer(peer, module, workload, folder, place))
            for peer, module in _peers()
        ]
        for contender in contenders:
            with _awake(contender):
                _load(workload, contender, 1, 4)
                _load(workload, contender, 16, 1)
        for _ in range(rounds):
            for clients, each in REQUESTS.items():
                for contender in contenders:
                    with _awake(contender):
                        _add(
                            report,
                            contender.name,
                            clients,
                            _load(workload, contender, clients, each),
                        )
    _add_ratios(report, [contender.name for contender in contenders])
    report.notes = [
        "While one server is measured, the peers' processes are suspended; ours only idles.",
        "Peak memory: resident sets of the process tree added up, so pages that forked processes "
        "share count several times.",
        f"Ours and the loop run {'OpenVINO' if converted else 'torch'}, the peers torch; all f32.",
        f"FastAPI runs pipeline() in its thread pool, LitServe in batches of 8; all have "
        f"{cores()} torch threads.",
    ]
    if "LitServe" not in {contender.name for contender in contenders}:
        report.notes.append("LitServe is not installed here and was left out.")
    return report


def _offline(report: Report, workload: Workload, folder: Path, converted: Path | None) -> None:
    inputs = workload.bodies(OFFLINE_REQUESTS)
    with in_process(workload.pipeline, folder, cores(), converted) as child:
        for batch in (1, 8):
            child.run(inputs, batch)
            seconds = sum(child.run(inputs, batch))
            report.add(f"in-process, batch {batch}", "req/s", len(inputs) / seconds)


@contextlib.contextmanager
def _ours(
    place: Path, workload: Workload, folder: Path
) -> Generator[tuple[Contender, Path | None]]:
    """Our server, and where the model lies that it has converted for OpenVINO."""
    with serving(place) as service:
        # Automatic ones are converted as well, once they have worked for some seconds.
        deployment = service.deploy(folder, MODEL, workload.pipeline, "hot", "openvino")
        service.wait_status(deployment, "ready")
        converted = service.wait_converted()
        service.wait_calibrated("openvino" if converted else "torch")
        contender = Contender(
            "ours",
            service.pid,
            lambda: service.connect(workload.path),
            lambda body: json.dumps({"model": MODEL, **body}).encode(),
        )
        yield contender, converted


def _peers() -> list[tuple[str, str]]:
    peers = [("FastAPI + pipeline()", "bench.peers.fastapi_pipeline")]
    if importlib.util.find_spec("litserve"):
        peers.append(("LitServe", "bench.peers.litserve_app"))
    return peers


@contextlib.contextmanager
def _peer(
    name: str, module: str, workload: Workload, folder: Path, place: Path
) -> Generator[Contender]:
    port = free_port()
    base_url = f"http://127.0.0.1:{port}"
    log_path = place / f"{module}.log"
    with log_path.open("ab") as log:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", module, "--model", str(folder)),
                *("--pipeline", workload.pipeline, "--port", str(port)),
            ],
            cwd=ROOT,
            env={**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            # As our replicas are: the kernel may share out its time by session.
            start_new_session=True,
        )
    contender = Contender(
        name,
        process.pid,
        lambda: Connection(base_url, "/predict"),
        lambda body: json.dumps(body).encode(),
    )
    try:
        _wait_healthy(base_url, process, log_path)
        suspend(process.pid)
        yield contender
    finally:
        end(process.pid)
        process.wait()


def _wait_healthy(base_url: str, process: "subprocess.Popen[bytes]", log_path: Path) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(f"{base_url}/health", verify=False).status_code == 200:
                return
        time.sleep(0.1)
    raise RuntimeError(f"a peer did not start:\n{log_path.read_text()[-2000:]}")


@contextlib.contextmanager
def _awake(contender: Contender) -> Generator[None]:
    """Let a peer run for as long as it is measured. Ours answers its own health checks always."""
    with contextlib.nullcontext() if contender.name == "ours" else awake(contender.pid):
        yield


def _load(workload: Workload, contender: Contender, clients: int, each: int) -> Measured:
    """Each of the clients sends its requests one after the other, all begin together."""
    inputs = [contender.body(body) for body in workload.bodies(clients * each)]
    latencies: list[float] = []
    errors: list[str] = []
    barrier = threading.Barrier(clients + 1)

    def client(own: Sequence[bytes]) -> None:
        with contender.connect() as connection:
            barrier.wait()
            until = time.perf_counter() + LOAD_S
            for body in own:
                started = time.perf_counter()
                if started > until:
                    return
                try:
                    connection.post(body)
                except HttpError as error:
                    errors.append(str(error))
                    continue
                latencies.append(time.perf_counter() - started)

    threads = [
        threading.Thread(target=client, args=(inputs[number::clients],))
        for number in range(clients)
    ]
    for thread in threads:
        thread.start()
    with _Watch(contender.pid) as watch:
        barrier.wait()
        started = time.perf_counter()
        for thread in threads:
            thread.join()
        seconds = time.perf_counter() - started
    if not latencies:
        raise RuntimeError(f"{contender.name} answered nothing: {errors[:1]}")
    return Measured(seconds, latencies, len(errors), watch.cpu_seconds, watch.peak_bytes)


class _Watch:
    """CPU time and memory of a process tree, while it works."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample)
        self.cpu_seconds = 0.0
        self.peak_bytes = 0

    def __enter__(self) -> "_Watch":
        self._before = cpu_seconds(self._pid)
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._ended.set()
        self._thread.join()
        self.cpu_seconds = cpu_seconds(self._pid) - self._before

    def _sample(self) -> None:
        while True:
            used = 0
            for process in tree(self._pid):
                with contextlib.suppress(psutil.NoSuchProcess):
                    used += process.memory_info().rss
            self.peak_bytes = max(self.peak_bytes, used)
            if self._ended.wait(SAMPLE_S):
                return


def _add(report: Report, name: str, clients: int, found: Measured) -> None:
    label = f"{name}, {clients} client{'s' if clients > 1 else ''}"
    answered = len(found.latencies)
    report.add(f"{label}", "req/s", answered / found.seconds)
    for share in (0.5, 0.99):
        value = percentile(found.latencies, share) * 1e3
        report.add(f"{label}, p{share * 100:.0f}", "ms", value)
    report.add(f"{label}, errors", "", found.errors)
    report.add(f"{label}, CPU a request", "s", found.cpu_seconds / answered)
    report.add(f"{label}, peak memory", "MiB", found.peak_bytes / 2**20)


def _add_ratios(report: Report, names: Sequence[str]) -> None:
    """Ours against each peer, and against the limit, round by round."""
    rates = {series.label: series.values for series in report.series if series.unit == "req/s"}
    limits = zip(rates["in-process, batch 1"], rates["in-process, batch 8"], strict=True)
    best = [max(pair) for pair in limits]
    for clients in REQUESTS:
        suffix = f", {clients} client{'s' if clients > 1 else ''}"
        ours = rates[f"ours{suffix}"]
        others = {name: rates[f"{name}{suffix}"] for name in names if name != "ours"}
        for name, theirs in (others | {"in-process, the better batch": best}).items():
            for mine, its in zip(ours, theirs, strict=True):
                report.add(f"ours / {name}{suffix}", "x", mine / its)
