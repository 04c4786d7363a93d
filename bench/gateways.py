"""Rate of two gateways compared with one, if the gateways are the bottleneck."""

import contextlib
import json
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from bench import wrk
from bench.common import Plan, Report, at_least, scratch
from bench.fleet import PIPELINE, TAGGER, pid_of, started
from bench.models import tiny_tagger
from bench.samples import texts
from bench.service import Service
from bench.throttling import throttled
from stoker.models.tasks.registry import TASKS

SHARE = 0.2
"""Share of a core for each gateway. Nodes, replicas and clients have the rest."""
CLIENTS = 16
"""Clients per gateway."""
SECONDS = 12
KNOWN_S = 3.0
"""Seconds until the other gateway knows a new deployment."""
TWICE = 1.9
SIDE = "two gateways and two nodes"


def run(plan: Plan) -> Report:
    report = Report("gateways", f"one and two gateways, each with {SHARE:g} of a core")
    seconds = plan.sized(SECONDS, 1)
    size = ("--nodes", "2", "--gateways", "2")
    with (
        scratch() as place,
        started(report, place / "fleet", SIDE, *size) as server,
        contextlib.ExitStack() as stack,
    ):
        service = Service(server, report, SIDE)
        replicas = {"min": 2, "max": 2}
        made = service.deploy(tiny_tagger(), TAGGER, PIPELINE, readiness="hot", replicas=replicas)
        service.wait_status(made, "ready")
        urls = json.loads((server.data_dir / "cluster.json").read_text())["gateways"]
        time.sleep(KNOWN_S)
        bodies = [json.dumps({"model": TAGGER, "inputs": text}).encode() for text in texts(64)]
        for number in (1, 2):
            pid = pid_of(server.data_dir / f"gateway-{number}" / "server.json")
            stack.enter_context(throttled(pid, SHARE))
        # Warm-up, which is not counted.
        _asked(service, urls, bodies, seconds)
        for _ in range(plan.rounds):
            single = _asked(service, urls[:1], bodies, seconds)
            both = _asked(service, urls, bodies, seconds)
            report.add("one gateway", "req/s", single)
            report.add("two gateways", "req/s", both)
            ratio = both / single
            report.add("two / one", "x", ratio, aim=f"≥ {TWICE:g}", meets=at_least(TWICE))
    report.notes.append(
        f"{CLIENTS} clients a gateway, in closed loops, a BERT of one layer with a replica on each "
        f"node. All share this machine: with {SHARE:g} of a core each, by control groups (which "
        "takes root), gateways are what there is too little of.",
    )
    return report


def _asked(service: Service, urls: Sequence[str], bodies: Sequence[bytes], seconds: int) -> float:
    """Returns the number of calls per second that the gateways answer together."""

    def ask(url: str) -> wrk.Found:
        return wrk.run(url + TASKS[PIPELINE].path, service.key, bodies, CLIENTS, seconds)

    with ThreadPoolExecutor(len(urls)) as threads:
        results = [*threads.map(ask, urls)]
    if failed := next((result.failure for result in results if result.failed), ""):
        raise RuntimeError(f"not all was answered: {failed}")
    return sum(result.answered / result.seconds for result in results)
