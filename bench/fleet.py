"""Added cost of a fleet on one machine: a gateway and a node instead of one server."""

import contextlib
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import launching
from bench.chat_models import small_llamas
from bench.chats import UNGUESSED, Chats, ours
from bench.client import Connection
from bench.common import Plan, Report, at_least, at_most, percentile, scratch
from bench.models import tiny_tagger
from bench.processes import own_cpu_seconds
from bench.samples import texts
from bench.server import IMPORTED, START_S, Server
from bench.service import Service, request_body, serving
from stoker.models.tasks.registry import TASKS

ADDED_MS, TOKEN_US, RATE = 1.0, 60.0, 0.9
REQUESTS, BLOCK = 400, 10
CLIENTS, CHATS, PROMPT, TOKENS = 16, 64, 32, 64
TAGGER, TALKER = "tagger", "talker"
PIPELINE = "token-classification"
ALONE, FLEET, RAY = "one server", "a gateway and a node", "a gateway, a node and Ray"
STARTS, COLD_MS = 12, 100.0
IDLE_S = 10.0


class FleetServer(Server):
    """Gateway of a fleet that `stoker cluster up` has started."""

    def __init__(self, process: "subprocess.Popen[bytes]", folder: Path, log_path: Path) -> None:
        self._folder = folder
        super().__init__(process, folder, log_path)

    def _announced(self) -> str:
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline and self._process.poll() is None:
            with contextlib.suppress(FileNotFoundError, json.JSONDecodeError):
                cluster = json.loads((self._folder / "cluster.json").read_text())
                return str(cluster["gateways"][0])
            time.sleep(0.02)
        raise RuntimeError(f"the fleet did not start:\n{self._log_path.read_text()[-4000:]}")


@dataclass(frozen=True)
class Side:
    service: Service
    gateway_pids: tuple[int, ...]
    """Processes between a caller and a replica."""

    def between_s(self) -> float:
        """Returns the processor time of these processes in seconds."""
        return sum(own_cpu_seconds(pid) for pid in self.gateway_pids)


@contextlib.contextmanager
def started(
    report: Report, folder: Path, name: str, *options: str, env: Mapping[str, str] | None = None
) -> Generator[FleetServer]:
    """Runs `stoker cluster up` in a new folder."""
    folder.mkdir()
    data_dir, log_path = folder / "data", folder / "fleet.log"
    command: list[str | Path] = [sys.executable, "-m", "stoker", "cluster", "up", *options]
    command += ["--port", "0", "--data-dir", data_dir]
    environment = {**IMPORTED, **(env or {})}
    with launching.started(report, name, command, environment, log_path) as process:
        server = FleetServer(process, data_dir, log_path)
        try:
            yield server
        finally:
            server.stop()


def pid_of(state: Path) -> int:
    """Returns the id of the process that wrote the state file."""
    pid: int = json.loads(state.read_text())["pid"]
    return pid


@contextlib.contextmanager
def _fleet(report: Report, folder: Path, name: str, *options: str) -> Generator[Side]:
    size = ("--nodes", "1", "--gateways", "1", *options)
    with started(report, folder, name, *size) as server:
        states = ("gateway-1/server.json", "node-1/node.json")
        pids = tuple(pid_of(server.data_dir / path) for path in states)
        yield Side(Service(server, report, name), pids)


def run(plan: Plan) -> Report:
    report = Report("fleet", "a gateway and a node, beside one server; all on this machine")
    chats = Chats()
    with (
        scratch() as place,
        serving(report, place / "alone", side=ALONE) as alone,
        _fleet(report, place / "fleet", FLEET) as fleet,
    ):
        sides = {ALONE: Side(alone, (alone.pid,)), FLEET: fleet}
        path = TASKS[PIPELINE].path
        count = plan.sized(REQUESTS, 2 * BLOCK)
        bodies = [request_body(TAGGER, text) for text in texts(count)]
        with contextlib.ExitStack() as stack:
            connections: dict[str, Connection] = {}
            for name, side in sides.items():
                made = side.service.deploy(tiny_tagger(), TAGGER, PIPELINE, readiness="hot")
                side.service.wait_status(made, "ready")
                connections[name] = stack.enter_context(side.service.connect(path))
                _talker(side.service, chats)
            idle = _idle(report, sides, plan.sized(IDLE_S, 1.0))
            for _ in range(plan.rounds):
                _calls(report, connections, bodies)
                _tokens(report, sides, chats, plan.sized(CHATS, CLIENTS), idle)
        with _fleet(report, place / "ray", RAY, "--ray") as ray:
            services = {name: side.service for name, side in {**sides, RAY: ray}.items()}
            for _ in range(plan.rounds):
                _cold_starts(report, services, plan.sized(STARTS, 2))
    report.notes += [
        f"One client, a BERT of one layer. The sides alternate after {BLOCK} requests. Added, "
        "paired: the median over the texts of the difference for the same text.",
        f"Streamed: {CLIENTS} clients, answers of {TOKENS} tokens from a Llama of 19 M parameters. "
        "Processor time of the server alone, and of the gateway and the node's host. Per token: "
        "their processor time minus that of the idle fleet.",
    ]
    return report


def _talker(service: Service, chats: Chats) -> None:
    """Deploys the chat model with torch, so that no conversion runs during the measurement."""
    wish = {"readiness": "hot", "engine": "torch", "config": UNGUESSED}
    made = service.deploy(small_llamas(50)[0], TALKER, "text-generation", **wish)
    service.wait_status(made, "ready")
    ours(service, TALKER).load(chats.draw(CLIENTS, PROMPT), CLIENTS, TOKENS)


def _calls(report: Report, connections: Mapping[str, Connection], bodies: list[Any]) -> None:
    milliseconds: dict[str, list[float]] = {name: [] for name in connections}
    for start in range(0, len(bodies), BLOCK):
        for name, connection in connections.items():
            connection.renew()
            for body in bodies[start : start + BLOCK]:
                began = time.perf_counter()
                connection.post(body)
                milliseconds[name].append((time.perf_counter() - began) * 1e3)
    for name, values in milliseconds.items():
        report.add(f"{name}, a small call, p50", "ms", percentile(values, 0.5))
        report.add(f"{name}, a small call, p99", "ms", percentile(values, 0.99))
    pairs = zip(milliseconds[FLEET], milliseconds[ALONE], strict=True)
    report.add(
        "added, paired",
        "ms",
        statistics.median(first - two for first, two in pairs),
        aim=f"≤ {ADDED_MS:g} ms",
        meets=at_most(ADDED_MS),
    )


def _cold_starts(report: Report, services: Mapping[str, Service], count: int) -> None:
    """Measures cold starts of deployments that have never run, with the model's files present."""
    milliseconds: dict[str, list[float]] = {name: [] for name in services}
    path, body = TASKS[PIPELINE].path, texts(1)[0]
    artifacts = {
        name: service.push(tiny_tagger(), "--name", "cold", "--pipeline", PIPELINE)["id"]
        for name, service in services.items()
    }
    for number in range(count + 1):
        for name, service in services.items():
            model = f"cold-{number}"
            wish = {"model": model, "artifact_id": artifacts[name]}
            made = service.api.post("/v1/deployments", json=wish).raise_for_status().json()["id"]
            with service.connect(path) as connection:
                began = time.perf_counter()
                connection.post(request_body(model, body))
                # The first start fetches the files.
                if number:
                    milliseconds[name].append((time.perf_counter() - began) * 1e3)
            service.api.delete(f"/v1/deployments/{made}").raise_for_status()
    for name, values in milliseconds.items():
        report.add(f"{name}, a cold start, p50", "ms", percentile(values, 0.5))
    for name in (FLEET, RAY):
        report.add(
            f"{name}, a cold start, more",
            "ms",
            percentile(milliseconds[name], 0.5) - percentile(milliseconds[ALONE], 0.5),
            aim=f"≤ {COLD_MS:g} ms",
            meets=at_most(COLD_MS),
        )


def _idle(report: Report, sides: Mapping[str, Side], seconds: float) -> dict[str, float]:
    """Returns the share of a core that each side uses without requests."""
    time.sleep(seconds)
    before = {name: side.between_s() for name, side in sides.items()}
    time.sleep(seconds)
    shares = {name: (side.between_s() - before[name]) / seconds for name, side in sides.items()}
    for name, share in shares.items():
        report.add(f"{name}, idle, a second", "ms", share * 1e3)
    return shares


def _tokens(
    report: Report,
    sides: Mapping[str, Side],
    chats: Chats,
    count: int,
    idle: Mapping[str, float],
) -> None:
    drawn = chats.draw(count, PROMPT)
    rates: dict[str, float] = {}
    spent_us: dict[str, float] = {}
    for name, side in sides.items():
        before = side.between_s()
        load = ours(side.service, TALKER).load(drawn, CLIENTS, TOKENS)
        spent_s = side.between_s() - before
        spent_us[name] = (spent_s - idle[name] * load.seconds) / load.tokens * 1e6
        rates[name] = load.rate
        report.add(f"{name}, streamed", "tok/s", load.rate)
        report.add(f"{name}, a streamed token", "µs", spent_us[name])
        report.add(
            f"{name}, a streamed token and what else is done", "µs", spent_s / load.tokens * 1e6
        )
        report.client.add(name, load.client_cpu_s, load.seconds)
    report.add(
        "a streamed token, more",
        "µs",
        spent_us[FLEET] - spent_us[ALONE],
        aim=f"≤ {TOKEN_US:g} µs",
        meets=at_most(TOKEN_US),
    )
    report.add(
        "streamed, fleet / one server",
        "x",
        rates[FLEET] / rates[ALONE],
        aim=f"≥ {RATE:g}",
        meets=at_least(RATE),
    )
