"""Cold start of a chat: from the request to the first token of a model that is not loaded."""

from bench.chat_models import llama_135m
from bench.chats import PIPELINE, Chats, ours
from bench.common import Plan, Report, at_most, scratch
from bench.service import serving

AIM_S = 1.5


def run(plan: Plan) -> Report:
    report = Report(
        "chat_start", "time to the first token of a Llama of 135 M parameters that is not loaded"
    )
    chats = Chats()
    with scratch() as place, serving(report, place) as service:
        # Converted at once, and not only after a while of work.
        wish = {"readiness": "hot", "engine": "openvino"}
        deployment = service.deploy(llama_135m(), "measured", PIPELINE, **wish)
        service.wait_engine(deployment, "openvino")
        service.api.patch(
            f"/v1/deployments/{deployment}", json={"readiness": "cold"}
        ).raise_for_status()
        endpoint = ours(service, "measured")
        for _ in range(plan.rounds):
            service.change(deployment, "stop", "stopped")
            service.change(deployment, "start", "idle")
            cold = endpoint.load(chats.draw(1), 1)
            service.wait_engine(deployment, "openvino", timeout=30)
            warm = endpoint.load(chats.draw(1), 1)
            report.add("ours", "s", cold.first_s(0.5), aim=f"≤ {AIM_S} s", meets=at_most(AIM_S))
            report.add("ours, the second chat", "s", warm.first_s(0.5))
    report.notes = [
        "The model was converted for OpenVINO before. The server runs, its engine host has "
        "imported its libraries, and the request forks the replica.",
        "The model's files are in the page cache.",
        "torch may answer the first chat while the converted model is compiled. It does not answer "
        "the second one.",
    ]
    return report
