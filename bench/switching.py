"""Switch to a new version under load: the effect on callers."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from bench import load, wrk
from bench.common import Plan, Report, at_most, clients_of, scratch
from bench.contenders import at_work
from bench.models import bert_base
from bench.samples import texts
from bench.service import Service, serving
from stoker.models.tasks.registry import TASKS

CLIENTS = 16
QUIET_S, SWITCH_S = 15, 15
PIPELINE = "token-classification"
MODEL = "switched"
AIM = 2.0
WAITING = ("preparing", "checking")


def run(plan: Plan) -> Report:
    report = Report("switching", f"a new version of BERT-base under {clients_of(CLIENTS)}")
    report.client.name = wrk.version()
    path = TASKS[PIPELINE].path
    with scratch() as place, serving(report, place / "ours") as service:
        deployment = service.deploy(bert_base(), MODEL, PIPELINE, readiness="hot")
        contender = at_work(service, path, MODEL)
        bodies = contender.encoded([{"inputs": text} for text in texts(64)])
        service.settle(deployment, path, bodies)
        for _ in range(plan.rounds):
            _round(report, plan, service, deployment, contender, bodies)
    report.notes += [
        "Before: the load without a switch. During: an equally long load, in which a new version "
        "of the same model is created, loaded, tested and made live.",
        "Both versions and the client share the cores.",
    ]
    return report


def _round(
    report: Report,
    plan: Plan,
    service: Service,
    deployment: str,
    one: load.Contender,
    bodies: list[bytes],
) -> None:
    before = load.measured(one, bodies, CLIENTS, plan.sized(QUIET_S, 3))
    with ThreadPoolExecutor(1) as beside:
        took = beside.submit(_switched, service, deployment)
        during = load.measured(one, bodies, CLIENTS, plan.sized(SWITCH_S, 6))
        report.add("until it was live", "s", took.result())
    load.add(report, "before", CLIENTS, before)
    load.add(report, "during", CLIENTS, during)
    report.add("failed during the switch", "", during.found.failed, aim="0", meets=at_most(0))
    report.add(
        "p99 during / before",
        "x",
        during.found.p99_ms / before.found.p99_ms,
        aim=f"≤ {AIM:g}",
        meets=at_most(AIM),
    )


def _switched(service: Service, deployment: str) -> float:
    """Returns the seconds until a new version, created during the load, is live."""
    time.sleep(1)
    began = time.perf_counter()
    path = f"/v1/deployments/{deployment}/versions"
    state = service.found(deployment)
    body = {"artifact_id": state["artifact_id"], "note": "another round"}
    version: dict[str, Any] = service.api.post(path, json=body).raise_for_status().json()
    while version["status"] in WAITING:
        time.sleep(0.05)
        version = service.api.get(f"{path}/{version['id']}").raise_for_status().json()
    if version["status"] != "live":
        raise RuntimeError(f"the version is {version['status']}: {json.dumps(version)}")
    return time.perf_counter() - began
