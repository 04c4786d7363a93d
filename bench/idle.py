"""Processor time of idle servers, and the time of commands to their first byte."""

import contextlib
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from bench import fleet, launching
from bench.common import Plan, Report, at_most, progress, scratch
from bench.models import tiny_tagger
from bench.path_calls import CALLS
from bench.processes import HOST, REPLICAS, SERVER, WORKERS, exact_cpu_seconds, parts_of
from bench.service import Service, serving

IDLE_S, SETTLE_S = 20, 30
"""Seconds of each measurement, and of rest before the first one."""
WORKERS_STARTED = 2
AIM_MS = 5
"""Most milliseconds of a core per second for a gateway and for a node."""
COMMAND_AIM_S = 0.25
COMMANDS = {"stoker --help": ("--help",), "stoker deployments list": ("deployments", "list")}
STARTS = 10
EMPTY, FIVE = "without deployments", "five hot deployments"
FLEET = "fleet"
STATES = {"gateway": "gateway-1/server.json", "node": "node-1/node.json"}
"""Maps the processes of the fleet to the files with their ids."""

Spent = Mapping[str, float]
"""Maps a label to processor time in seconds."""


def run(plan: Plan) -> Report:
    report = Report("idle", "processor time of idle servers, and start of commands")
    with contextlib.ExitStack() as stack:
        place = stack.enter_context(scratch())
        empty, five = (
            stack.enter_context(serving(report, place / side, side=side, workers=WORKERS_STARTED))
            for side in (EMPTY, FIVE)
        )
        size = ("--nodes", "1", "--gateways", "1")
        several = stack.enter_context(fleet.started(report, place / FLEET, FLEET, *size))
        _deploy_five(five)
        _deploy_five(Service(several, report, FLEET))
        sides: list[Callable[[], Spent]] = [
            lambda: _of_server(empty.pid, EMPTY, ("gateway", WORKERS)),
            lambda: _of_server(five.pid, FIVE, ("gateway", WORKERS, HOST, REPLICAS)),
            lambda: _of_fleet(several.data_dir),
        ]
        progress("the servers rest")
        time.sleep(plan.sized(SETTLE_S, 1))
        for number in range(plan.rounds):
            _measure_idle(report, sides, plan.sized(IDLE_S, 1))
            _measure_commands(report, five, place, plan.sized(STARTS, 2))
            progress(f"round {number + 1} of {plan.rounds} done")
    report.notes += [
        f"Milliseconds of a core per second, over {plan.sized(IDLE_S, 1)} s, all servers at once. "
        f"Before the first round they rest for {plan.sized(SETTLE_S, 1)} s.",
        f"Each server without a fleet has SQLite and {WORKERS_STARTED} HTTP workers. HTTP workers: "
        "all workers together, with their host. Replicas: all five together.",
        "The fleet has a gateway, a node with the same five deployments, and PostgreSQL.",
        f"Commands: seconds from the start of the process to the first byte of its output, the "
        f"median of {plan.sized(STARTS, 2)}.",
    ]
    return report


def _deploy_five(service: Service) -> None:
    """Deploys five tiny models of different tasks, and waits until they are ready."""
    models = {name: (call.folder(), call.pipeline) for name, call in CALLS.items()}
    models["tagger"] = (tiny_tagger(), "token-classification")
    deployments = [
        service.deploy(folder, name, pipeline, readiness="hot")
        for name, (folder, pipeline) in models.items()
    ]
    for deployment in deployments:
        service.wait_status(deployment, "ready")


def _of_server(pid: int, side: str, parts: Sequence[str]) -> Spent:
    """Returns the processor time of the parts of a server."""
    pids = parts_of(pid)
    pids["gateway"] = pids[SERVER]
    return {f"{side}, {part}": sum(map(exact_cpu_seconds, pids[part])) for part in parts}


def _of_fleet(folder: Path) -> Spent:
    """Returns the processor time of the gateway's and the node's own processes."""
    return {
        f"{FLEET}, {name}": exact_cpu_seconds(fleet.pid_of(folder / state))
        for name, state in STATES.items()
    }


def _measure_idle(report: Report, sides: Sequence[Callable[[], Spent]], seconds: int) -> None:
    before, began = _all(sides), time.monotonic()
    time.sleep(seconds)
    add(report, before, _all(sides), time.monotonic() - began)


def add(report: Report, before: Spent, after: Spent, seconds: float) -> None:
    """Adds the processor time per second between two readings. Gateways and nodes have an aim."""
    for label, spent in after.items():
        has_aim = label.endswith((", gateway", ", node"))
        report.add(
            label,
            "ms/s",
            (spent - before[label]) / seconds * 1e3,
            aim=f"≤ {AIM_MS} ms/s" if has_aim else "",
            meets=at_most(AIM_MS) if has_aim else None,
        )


def _all(sides: Sequence[Callable[[], Spent]]) -> dict[str, float]:
    spent: dict[str, float] = {}
    for side in sides:
        spent |= side()
    return spent


def _measure_commands(report: Report, service: Service, place: Path, count: int) -> None:
    address = {"STOKER_BASE_URL": service.base_url, "STOKER_API_KEY": service.key}
    environment = launching.environment({**service.server.imported, **address})
    for name, arguments in COMMANDS.items():
        # The first start reads the files.
        starts = [first_byte_s(arguments, place, environment) for _ in range(count + 1)]
        report.add(
            name,
            "s",
            statistics.median(starts[1:]),
            aim=f"≤ {COMMAND_AIM_S:g} s",
            meets=at_most(COMMAND_AIM_S),
        )


def first_byte_s(arguments: Sequence[str], folder: Path, environment: Mapping[str, str]) -> float:
    """Returns the seconds from the start of a command to the first byte of its output.

    Raises `RuntimeError` if the command fails or writes nothing.
    """
    command = [sys.executable, "-m", "stoker", *arguments]
    began = time.perf_counter()
    with subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
    ) as process:
        assert process.stdout
        first = process.stdout.read(1)
        seconds = time.perf_counter() - began
        _, errors = process.communicate()
    if process.returncode or not first:
        raise RuntimeError(f"`stoker {' '.join(arguments)}` failed: {errors.decode()[-2000:]}")
    return seconds
