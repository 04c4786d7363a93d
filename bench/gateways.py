"""What a second gateway brings where one is the limit, by the processor time of a call in each."""

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from bench import wrk
from bench.common import Plan, Report, at_least, scratch
from bench.fleet import PIPELINE, TAGGER, started
from bench.models import texts, tiny_tagger
from bench.processes import own_cpu_seconds
from bench.service import Service
from stoker.tasks.registry import TASKS

CLIENTS = 16
"""Of each gateway."""
SECONDS = 10
TWICE = 1.9
SIDE = "two gateways and two nodes"


def run(plan: Plan) -> Report:
    report = Report("gateways", "one of two gateways, and both at once; all on this machine")
    seconds = plan.sized(SECONDS, 1)
    size = ("--nodes", "2", "--gateways", "2")
    with scratch() as place, started(report, place / "fleet", SIDE, *size) as server:
        service = Service(server, report, SIDE)
        replicas = {"min": 2, "max": 2}
        made = service.deploy(tiny_tagger(), TAGGER, PIPELINE, readiness="hot", replicas=replicas)
        service.wait_status(made, "ready")
        state = json.loads((server.data_dir / "cluster.json").read_text())
        names = [f"gateway-{number}/server.json" for number in (1, 2)]
        pids = [json.loads((server.data_dir / name).read_text())["pid"] for name in names]
        gateways = [*zip(state["gateways"], pids, strict=True)]
        bodies = [json.dumps({"model": TAGGER, "inputs": text}).encode() for text in texts(64)]
        _measured(service, gateways, bodies, seconds)
        for _ in range(plan.rounds):
            one = _measured(service, gateways[:1], bodies, seconds)
            both = _measured(service, gateways, bodies, seconds)
            report.add("one, a call", "µs", one * 1e6)
            report.add("both, a call", "µs", both * 1e6)
            report.add(
                "two on cores of their own / one",
                "x",
                2 * one / both,
                aim=f"≥ {TWICE:g}",
                meets=at_least(TWICE),
            )
    report.notes += [
        f"{CLIENTS} clients a gateway, in closed loops, a BERT of one layer with a replica on each "
        "node. Processor time of the gateways alone, a call that was answered.",
        "All share the cores of this machine, so how many calls two answer cannot be seen on few "
        "of them. What is seen is whether a call costs a gateway more where there is another.",
    ]
    return report


def _measured(
    service: Service,
    gateways: Sequence[tuple[str, int]],
    bodies: Sequence[bytes],
    seconds: int,
) -> float:
    """Processor time of a call in its gateway, seconds."""

    def ask(url: str) -> wrk.Found:
        return wrk.run(url + TASKS[PIPELINE].path, service.key, bodies, CLIENTS, seconds)

    before = sum(own_cpu_seconds(pid) for _, pid in gateways)
    with ThreadPoolExecutor(len(gateways)) as threads:
        found = [*threads.map(ask, [url for url, _ in gateways])]
    spent = sum(own_cpu_seconds(pid) for _, pid in gateways) - before
    if failed := next((one.failure for one in found if one.failed), ""):
        raise RuntimeError(f"not all was answered: {failed}")
    return spent / sum(one.answered for one in found)
