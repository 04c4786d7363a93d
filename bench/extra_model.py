"""Memory cost of one more small model, in addition to its weights."""

from pathlib import Path

import stoker.demo
from bench.common import Plan, Report, at_most, scratch
from bench.processes import proportional_bytes
from bench.service import Service, request_body, serving

MODELS = Path(stoker.demo.__file__).parent / "models"
PATHS = {
    "tiny-ner": ("token-classification", "/v1/classifications/token"),
    "tiny-sentiment": ("text-classification", "/v1/classifications/text"),
    "tiny-fill-mask": ("fill-mask", "/v1/fill-mask"),
    "tiny-encoder": ("feature-extraction", "/v1/feature-extraction"),
    "tiny-summarizer": ("summarization", "/v1/summarizations"),
}
AIM_MB = 60


def run(plan: Plan) -> Report:
    report = Report("extra_model", "memory of one more small model, beyond its weights")
    for _ in range(plan.rounds):
        with scratch() as place, serving(report, place) as service:
            before = proportional_bytes(service.pid)
            for model, (pipeline, path) in PATHS.items():
                deployment = service.deploy(MODELS / model, model, pipeline, readiness="hot")
                service.wait_status(deployment, "ready")
                _call(service, model, path)
                service.tell_engine(deployment)
                memory_bytes = proportional_bytes(service.pid)
                weights = sum(
                    file.stat().st_size for file in (MODELS / model).rglob("*.safetensors")
                )
                report.add(
                    model,
                    "MB",
                    (memory_bytes - before - weights) / 1e6,
                    aim=f"≤ {AIM_MB} MB",
                    meets=at_most(AIM_MB),
                )
                before = memory_bytes
    report.notes = [
        "Growth of the proportional set size (PSS) of the server, its engine host and all replicas "
        "together, after one call."
    ]
    return report


def _call(service: Service, model: str, path: str) -> None:
    with service.connect(path) as connection:
        connection.post(request_body(model, "Ada [MASK] in London."))
