"""Overload at five times the capacity for a minute, and the effect of one account's flood on
another.
"""

import json
import statistics
import time
from concurrent.futures import ThreadPoolExecutor

from bench.client import Connection
from bench.common import Plan, Report, at_least, at_most, scratch
from bench.models import bert_base, minilm
from bench.open_loop import Found, OpenLoop
from bench.samples import texts
from bench.service import Service, serving
from stoker.models.tasks.registry import TASKS

TIMES = 5
FLOOD_S, CAPACITY_S = 60, 15
SATURATING = 16
RECOVERY_S, IN_A_ROW = 5.0, 5
NEIGHBOUR_S = 30
NEIGHBOURS_RATE = 8.0
PIPELINE, NEIGHBOURS = "token-classification", "feature-extraction"


def run(plan: Plan) -> Report:
    report = Report("overload", f"{TIMES} times the capacity, in an open loop")
    path = TASKS[PIPELINE].path
    with scratch() as place, serving(report, place) as service:
        deployment = service.deploy(bert_base(), "flooded", PIPELINE, readiness="hot")
        bodies = [json.dumps({"model": "flooded", "inputs": text}).encode() for text in texts(64)]
        service.settle(deployment, path, bodies)
        for _ in range(plan.rounds):
            _flood(report, service, path, bodies, plan)
        _neighbour(report, service, path, bodies, plan)
    report.notes += [
        f"Capacity: responses a second for {SATURATING} clients in closed loops. Then requests are "
        f"sent at {TIMES} times that rate, at random moments, without waiting for answers. Latency "
        "counts from the scheduled time.",
        f"Recovery time: from the end of the flood until {IN_A_ROW} calls in a row take at most "
        "twice the time of one alone.",
        "The neighbour is another account with a model of its own (MiniLM), on the same cores.",
    ]
    return report


def _flood(report: Report, service: Service, path: str, bodies: list[bytes], plan: Plan) -> None:
    alone = _alone_s(service.base_url, path, service.key, bodies, 20)
    capacity = _capacity(service, path, bodies, plan.sized(CAPACITY_S, 3))
    flood = OpenLoop(service.base_url, path, service.key, bodies)
    result = flood.run(TIMES * capacity, plan.sized(FLOOD_S, 5))
    took = _recovery_s(service, path, bodies, statistics.median(alone))
    refused = sum(result.refused.values())
    report.add("capacity", "req/s", capacity)
    report.add("offered", "x capacity", _offered(result) / capacity)
    report.add("goodput / capacity", "x", result.rate / capacity, aim="≥ 0.9", meets=at_least(0.9))
    report.add("p50 of answered requests", "ms", result.ms(0.5))
    report.add("p99 of answered requests", "ms", result.ms(0.99))
    report.add("refused with 429 or 503", "%", 100 * refused / max(1, _count(result)))
    report.add("refused without Retry-After", "", result.untold, aim="0", meets=at_most(0))
    report.add("other outcomes", "", sum(result.failed.values()), aim="0", meets=at_most(0))
    report.add("recovery time", "s", took, aim="≤ 5 s", meets=at_most(RECOVERY_S))
    report.client.add("overload", result.client_cpu_s, result.seconds)
    if result.failed:
        report.notes.append(f"Other outcomes: {dict(result.failed)}")


def _neighbour(
    report: Report, service: Service, path: str, bodies: list[bytes], plan: Plan
) -> None:
    """Measures the p99 of a caller with few requests, alone and during another account's flood."""
    other = Service(service.server, report, "ours")
    deployment = other.deploy(minilm(), "quiet", NEIGHBOURS, readiness="hot")
    quiet_path = TASKS[NEIGHBOURS].path
    quiet = [json.dumps({"model": "quiet", "inputs": text}).encode() for text in texts(64)]
    other.settle(deployment, quiet_path, quiet)
    seconds = plan.sized(NEIGHBOUR_S, 4)
    capacity = _capacity(service, path, bodies, plan.sized(CAPACITY_S, 3))
    for _ in range(plan.rounds):
        alone = OpenLoop(other.base_url, quiet_path, other.key, quiet).run(NEIGHBOURS_RATE, seconds)
        with ThreadPoolExecutor(1) as beside:
            flood = OpenLoop(service.base_url, path, service.key, bodies)
            flooding = beside.submit(flood.run, TIMES * capacity, seconds + 3)
            time.sleep(2)
            flooded = OpenLoop(other.base_url, quiet_path, other.key, quiet).run(
                NEIGHBOURS_RATE, seconds
            )
            flooding.result()
        report.add("neighbour alone, p50", "ms", alone.ms(0.5))
        report.add("neighbour alone, p99", "ms", alone.ms(0.99))
        report.add("neighbour during the flood, p50", "ms", flooded.ms(0.5))
        report.add("neighbour during the flood, p99", "ms", flooded.ms(0.99))
        report.add(
            "neighbour's p99, during the flood / alone",
            "x",
            flooded.ms(0.99) / alone.ms(0.99),
            aim="≤ 1.5",
            meets=at_most(1.5),
        )
        not_answered = sum(flooded.refused.values()) + sum(flooded.failed.values())
        report.add("neighbour's requests not answered", "", not_answered)


def _capacity(service: Service, path: str, bodies: list[bytes], seconds: int) -> float:
    """Returns the responses per second for enough clients to keep the server busy."""

    def ask(first: int) -> int:
        answered = 0
        with Connection(service.base_url, path, service.key) as connection:
            while time.perf_counter() < end:
                connection.post(bodies[(first + answered) % len(bodies)])
                answered += 1
        return answered

    began = time.perf_counter()
    end = began + seconds
    with ThreadPoolExecutor(SATURATING) as clients:
        answered = sum(clients.map(ask, range(SATURATING)))
    return answered / (time.perf_counter() - began)


def _alone_s(base_url: str, path: str, key: str, bodies: list[bytes], count: int) -> list[float]:
    seconds: list[float] = []
    with Connection(base_url, path, key) as connection:
        for number in range(count):
            began = time.perf_counter()
            connection.post(bodies[number % len(bodies)])
            seconds.append(time.perf_counter() - began)
    return seconds


def _recovery_s(service: Service, path: str, bodies: list[bytes], alone_s: float) -> float:
    """Returns the seconds until several consecutive calls take a normal time. The queue is
    processed first.
    """
    began, good, number = time.perf_counter(), 0, 0
    with Connection(service.base_url, path, service.key) as connection:
        while good < IN_A_ROW:
            at = time.perf_counter()
            connection.post(bodies[number % len(bodies)])
            took = time.perf_counter() - at
            good = good + 1 if took <= 2 * alone_s + 0.05 else 0
            number += 1
    return time.perf_counter() - began


def _count(found: Found) -> int:
    return len(found.answered_s) + sum(found.refused.values()) + sum(found.failed.values())


def _offered(found: Found) -> float:
    return _count(found) / found.seconds
