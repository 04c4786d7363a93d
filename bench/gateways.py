"""How many calls two gateways answer beside one, where they are the limit."""

import contextlib
import json
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from bench import wrk
from bench.common import Plan, Report, at_least, scratch
from bench.fleet import PIPELINE, TAGGER, pid_of, started
from bench.models import texts, tiny_tagger
from bench.service import Service
from bench.throttling import throttled
from stoker.models.tasks.registry import TASKS

SHARE = 0.2
"""Of a core, for each gateway: nodes, replicas and clients have the rest."""
CLIENTS = 16
"""Of each gateway."""
SECONDS = 12
KNOWN_S = 3.0
"""A deployment is known to the other gateway by then."""
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
        # Once that does not count.
        _asked(service, urls, bodies, seconds)
        for _ in range(plan.rounds):
            one = _asked(service, urls[:1], bodies, seconds)
            both = _asked(service, urls, bodies, seconds)
            report.add("one gateway", "req/s", one)
            report.add("two gateways", "req/s", both)
            ratio = both / one
            report.add("two / one", "x", ratio, aim=f"≥ {TWICE:g}", meets=at_least(TWICE))
    report.notes.append(
        f"{CLIENTS} clients a gateway, in closed loops, a BERT of one layer with a replica on each "
        f"node. All share this machine: with {SHARE:g} of a core each, by control groups (which "
        "takes root), gateways are what there is too little of.",
    )
    return report


def _asked(service: Service, urls: Sequence[str], bodies: Sequence[bytes], seconds: int) -> float:
    """How many calls a second the gateways answer together."""

    def ask(url: str) -> wrk.Found:
        return wrk.run(url + TASKS[PIPELINE].path, service.key, bodies, CLIENTS, seconds)

    with ThreadPoolExecutor(len(urls)) as threads:
        found = [*threads.map(ask, urls)]
    if failed := next((one.failure for one in found if one.failed), ""):
        raise RuntimeError(f"not all was answered: {failed}")
    return sum(one.answered / one.seconds for one in found)
