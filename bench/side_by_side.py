"""Several busy replicas on the same cores: of one model, and of two models."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from bench import load, wrk
from bench.common import Plan, Report, at_least, clients_of, cores, progress, scratch
from bench.contenders import at_work
from bench.load import Contender
from bench.models import minilm
from bench.service import Service, serving
from bench.workloads import OURS, WORKLOADS

CLIENTS = 16
REPLICAS = (1, 2, 4)
LOAD_S = 6
ENGINE = "openvino"
"""Engine that is set explicitly. By default, each model would be converted after a while of work,
and measured before that.
"""
AIM = 1.0


def run(plan: Plan) -> Report:
    report = Report("side_by_side", "MiniLM embeddings with several replicas on the same cores")
    report.client.name = wrk.version()
    seconds = plan.sized(LOAD_S, 2)
    with scratch() as place, serving(report, place / OURS) as service:
        models = {f"with {count}": _deployed(service, f"with-{count}", count) for count in REPLICAS}
        other = _deployed(service, "other", 1)
        for number in range(plan.rounds):
            rates: dict[str, float] = {}
            for name, contender in models.items():
                rates[name] = load.measured(contender, _bodies(contender), CLIENTS, seconds).rate
                plural = "" if name == "with 1" else "s"
                label = f"{OURS}, {name} replica{plural}, {clients_of(CLIENTS)}"
                report.add(label, "req/s", rates[name])
            first = models["with 1"]
            half = CLIENTS // 2
            alone = load.measured(first, _bodies(first), half, seconds).rate
            together = _together([first, other], seconds)
            report.add(f"one model, {clients_of(half)}", "req/s", alone)
            report.add(f"two models at once, {clients_of(half)} each", "req/s", together)
            report.add(
                "two models at once / one after the other",
                "x",
                together / alone,
                aim=f"≥ {AIM:g}",
                meets=at_least(AIM),
            )
            for name in list(models)[1:]:
                report.add(f"{name} replicas / with 1", "x", rates[name] / rates["with 1"])
            progress(f"round {number + 1}: {rates}, two models at once: {together:.1f} req/s")
    report.notes += [
        f"Every replica may use all {cores()} cores. Two models are one model, deployed twice. "
        "Each has half of the clients, alone or together with the other.",
    ]
    return report


def _deployed(service: Service, model: str, replicas: int) -> Contender:
    workload = WORKLOADS["embeddings"]
    deployment = service.deploy(
        minilm(),
        model,
        workload.pipeline,
        readiness="hot",
        engine=ENGINE,
        replicas={"min": replicas, "max": replicas},
    )
    contender = at_work(service, workload.path, model)
    service.wait_engine(deployment, ENGINE)
    load.measured(contender, _bodies(contender), CLIENTS, 2)
    service.wait_calibrated(deployment)
    return contender


def _bodies(one: Contender) -> list[bytes]:
    workload = WORKLOADS["embeddings"]
    return one.encoded(workload.bodies(workload.cycle))


def _together(contenders: Sequence[Contender], seconds: int) -> float:
    """Returns the total requests per second. Each contender is called by its share of the
    clients.
    """
    each = CLIENTS // len(contenders)
    with ThreadPoolExecutor(len(contenders)) as threads:
        asking = [
            threads.submit(
                wrk.run, item.base_url + item.path, item.key, _bodies(item), each, seconds
            )
            for item in contenders
        ]
        results = [item.result() for item in asking]
    if failed := sum(item.failed for item in results):
        raise RuntimeError(f"{failed} requests failed: {results[0].failure or results[1].failure}")
    return sum(item.answered / item.seconds for item in results)
