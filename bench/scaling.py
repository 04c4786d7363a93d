"""Increase of the request rate with more replicas of a model, on four nodes."""

import os
import time

from bench import load
from bench.common import ROOT, Plan, Report, at_least, progress, scratch
from bench.contenders import at_work
from bench.fleet import started
from bench.models import tiny_tagger
from bench.samples import texts
from bench.server import IMPORTED
from bench.service import Service
from stoker.models.tasks.registry import TASKS

NODES = 4
REPLICAS = (1, 2, 4, 8)
EACH = 4
"""Clients per replica."""
SECONDS = 8
LINEAR = 0.95
READY_S = 120
PIPELINE, MODEL = "token-classification", "asleep"
ENGINE = ROOT / "tools" / "stand_ins" / "sleeper"
SIDE = f"a gateway and {NODES} nodes"


def run(plan: Plan) -> Report:
    report = Report("scaling", f"a model that sleeps, on {NODES} nodes of this machine")
    path = TASKS[PIPELINE].path
    bodies = [{"inputs": text} for text in texts(16)]
    python_path = os.pathsep.join([str(ENGINE), *filter(None, [IMPORTED.get("PYTHONPATH")])])
    size = ("--nodes", str(NODES), "--gateways", "1")
    with (
        scratch() as place,
        started(report, place / "fleet", SIDE, *size, env={"PYTHONPATH": python_path}) as server,
    ):
        service = Service(server, report, SIDE)
        pushed = service.push(tiny_tagger(), "--name", MODEL, "--pipeline", PIPELINE)
        counts = plan.sized(REPLICAS, REPLICAS[:2])
        for _ in range(plan.rounds):
            rates: dict[int, float] = {}
            for count in counts:
                deployment = _deployed(service, pushed["id"], count)
                contender = at_work(service, path, MODEL)
                encoded = contender.encoded(bodies)
                load.measured(contender, encoded, EACH * count, 2)
                measured_load = load.measured(contender, encoded, EACH * count, SECONDS)
                rates[count] = measured_load.rate
                service.api.delete(f"/v1/deployments/{deployment}").raise_for_status()
                progress(f"{count} replicas: {measured_load.rate:.1f} requests a second")
                label = f"{count} replica{'s' if count > 1 else ''}"
                report.add(label, "req/s", measured_load.rate)
                if count > 1:
                    report.add(
                        f"{label} / {count} times one",
                        "x",
                        measured_load.rate / count / rates[1],
                        aim=f"≥ {LINEAR:g}",
                        meets=at_least(LINEAR),
                    )
    report.notes += [
        f"{EACH} clients a replica, in closed loops; the engine sleeps for 40 ms a sample.",
        "Gateway, nodes, replicas and clients share the cores of this machine.",
    ]
    return report


def _deployed(service: Service, artifact: str, count: int) -> str:
    wish = {
        "model": MODEL,
        "artifact_id": artifact,
        "engine": "sleeper",
        "readiness": "hot",
        "replicas": {"min": count, "max": count},
    }
    made = service.api.post("/v1/deployments", json=wish).raise_for_status().json()["id"]
    deadline = time.monotonic() + READY_S
    while sum(worker["status"] == "ready" for worker in service.found(made)["workers"]) < count:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{count} replicas were not there in time")
        time.sleep(0.05)
    return made
