"""Processor time of a small request by process, without HTTP workers and with two."""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench import wrk
from bench.common import Plan, Report, at_most, clients_of, cores, progress, scratch
from bench.path import MODEL, settle
from bench.path_calls import CALLS, DIFFERENT
from bench.processes import REPLICAS, SERVER, WORKERS, exact_cpu_seconds, parts_of
from bench.service import Service, serving

WITHOUT, WITH = "without workers", "2 workers"
COUNTS = {WITHOUT: 1, WITH: 2}
"""Maps each side to its setting `workers`. With 1, the server answers all calls itself."""
CLIENTS = (16, 64)
LOAD_S, WARM_S, IDLE_S = 4, 2, 5
SERVER_AIM, TOTAL_AIM = 100, 700
"""Most microseconds of a request in a server with workers, and in all of its processes."""
CALL = CALLS["path_text"]
TOTAL = "total"


@dataclass(frozen=True)
class Side:
    name: str
    service: Service
    idle: Mapping[str, float]
    """Processor time per second of the idle processes, by part."""


def run(plan: Plan) -> Report:
    report = Report("workers", f"processor time of {CALL.title} by process, with HTTP workers")
    report.client.name = wrk.version()
    bodies = [
        json.dumps({"model": MODEL, **body}).encode()
        for body in CALL.bodies(plan.sized(DIFFERENT, 8))
    ]
    with (
        scratch() as place,
        serving(report, place / "one", side=WITHOUT, workers=COUNTS[WITHOUT]) as without,
        serving(report, place / "two", side=WITH, workers=COUNTS[WITH]) as several,
    ):
        services = {WITHOUT: without, WITH: several}
        for service in services.values():
            settle(service, CALL)
        _check_workers(several)
        sides = _with_idle(services, plan.sized(IDLE_S, 1))
        for side in sides:
            for clients in CLIENTS:
                _load(side, bodies, clients, plan.sized(WARM_S, 1))
        for number in range(plan.rounds):
            for clients in CLIENTS:
                for side in sides:
                    _measure(report, side, bodies, clients, plan.sized(LOAD_S, 1))
            progress(f"round {number + 1} of {plan.rounds} done")
    report.notes += [
        f"Microseconds of processor time for each {CALL.unit}, minus the cost of an idle server. "
        f"{cores()} cores are shared by client, server, workers and replica.",
        "HTTP workers: all workers together, with their host. The total includes the engine host.",
        "The sides take turns in each round. Both servers run all the time.",
    ]
    return report


def _check_workers(service: Service) -> None:
    """Raises `RuntimeError` if a server has not the host and the workers that are measured."""
    running = len(parts_of(service.pid)[WORKERS])
    if running != COUNTS[WITH] + 1:
        raise RuntimeError(f"{running} processes of HTTP workers run, not {COUNTS[WITH] + 1}")


def _spent(service: Service) -> dict[str, float]:
    """Returns the processor time of a server in seconds, by part."""
    spent = {
        part: sum(exact_cpu_seconds(pid) for pid in pids)
        for part, pids in parts_of(service.pid).items()
    }
    return spent | {TOTAL: sum(spent.values())}


def _with_idle(services: Mapping[str, Service], seconds: int) -> list[Side]:
    """Measures what the servers spend without requests."""
    before = {name: _spent(service) for name, service in services.items()}
    time.sleep(seconds)
    return [
        Side(name, service, _shares(before[name], _spent(service), seconds))
        for name, service in services.items()
    ]


def _shares(
    before: Mapping[str, float], after: Mapping[str, float], seconds: float
) -> dict[str, float]:
    return {part: (after[part] - before[part]) / seconds for part in after}


def _load(side: Side, bodies: Sequence[bytes], clients: int, seconds: int) -> wrk.Found:
    """Runs clients in closed loops. Raises `RuntimeError` if a request fails."""
    service = side.service
    result = wrk.run(service.base_url + CALL.path, service.key, bodies, clients, seconds)
    if result.failed or not result.answered:
        raise RuntimeError(f"{side.name}: requests failed: {result.failure or 'no answer'}")
    return result


def _measure(
    report: Report, side: Side, bodies: Sequence[bytes], clients: int, seconds: int
) -> None:
    label = f"{side.name}, {clients_of(clients)}"
    before, began = _spent(side.service), time.monotonic()
    result = _load(side, bodies, clients, seconds)
    took = time.monotonic() - began
    shares = _shares(before, _spent(side.service), took)
    report.client.add(label, result.cpu_seconds, result.seconds)
    report.add(label, "req/s", result.answered / result.seconds)
    report.add(f"{label}, p50", "ms", result.p50_ms)
    aims = {SERVER: SERVER_AIM, TOTAL: TOTAL_AIM} if side.name == WITH else {}
    for part in (SERVER, WORKERS, REPLICAS, TOTAL):
        aim = aims.get(part)
        report.add(
            f"{label}, {part}",
            "µs",
            (shares[part] - side.idle[part]) * took / result.answered * 1e6,
            aim=f"≤ {aim} µs" if aim else "",
            meets=at_most(aim) if aim else None,
        )
