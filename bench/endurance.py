"""A hundred thousand requests: stability of memory."""

import psutil

from bench import load, wrk
from bench.common import Plan, Report, at_least, at_most, scratch
from bench.contenders import at_work
from bench.models import tiny_tagger
from bench.processes import tree
from bench.service import serving
from bench.workloads import OURS, WORKLOADS

REQUESTS, BEFORE = 100_000, 5_000
"""Total number of requests, and number after which the reference memory is measured."""
CLIENTS = 16
LOAD_S = 10
MOST_LOADS = 60
WITHIN = 1.05


def run(plan: Plan) -> Report:
    report = Report("endurance", f"{REQUESTS} requests to a model of one layer")
    report.client.name = wrk.version()
    workload = WORKLOADS["small"]
    with scratch() as place, serving(report, place / OURS) as service:
        deployment = service.deploy(tiny_tagger(), "tiny", workload.pipeline, readiness="hot")
        contender = at_work(service, workload.path, "tiny")
        bodies = contender.encoded(workload.bodies(workload.cycle))
        service.settle(deployment, workload.path, bodies)
        answered = failed = 0
        before: dict[str, int] = {}
        for _ in range(MOST_LOADS):
            result = load.measured(contender, bodies, CLIENTS, plan.sized(LOAD_S, 1)).found
            answered, failed = answered + result.answered, failed + result.failed
            if not before and answered >= plan.sized(BEFORE, 0):
                before = _held(service.pid)
            if answered >= plan.sized(REQUESTS, 1):
                break
        after = _held(service.pid)
    report.add("answered", "", answered, aim=f"≥ {REQUESTS}", meets=at_least(REQUESTS))
    report.add("errors", "", failed, aim="0", meets=at_most(0))
    for part, size in before.items():
        report.add(f"{part}, at first", "MiB", size / 2**20)
        report.add(f"{part}, at last", "MiB", after[part] / 2**20)
        report.add(
            f"{part}, at last / at first",
            "x",
            after[part] / size,
            aim=f"≤ {WITHIN:g}",
            meets=at_most(WITHIN),
        )
    report.notes += [
        "Memory that is each process's own (unique set size). At first: after the load in which "
        f"the first {BEFORE} requests were answered. One round, however many are asked for.",
    ]
    return report


def _held(pid: int) -> dict[str, int]:
    """Returns the private memory of the gateway and of its children, in bytes."""
    sizes = {"gateway": 0, "below it": 0}
    for process in tree(pid):
        try:
            part = "gateway" if process.pid == pid else "below it"
            sizes[part] += process.memory_full_info().uss
        except psutil.NoSuchProcess:
            continue
    return sizes
