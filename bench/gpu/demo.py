"""Row of the demo: every example call by its default deployment and on the CPU, compared."""

import base64
import importlib.util
import json
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import httpx

from bench.common import cores, percentile
from bench.gpu.answers import Difference, difference
from bench.gpu.results import Row, Target
from bench.gpu.session import Session, clear, deployments
from bench.gpu.sizes import Sizes
from bench.service import Service

AT_ONCE = 4
CALL_S = 60
ON_CPU = "-on-cpu"
"""Suffix of the model id of a second deployment, on the CPU in float32."""
CPU = {"device": "cpu", "dtype": "float32"}
SEED = 1
DRAWING = ("/v1/images/generations", "/v1/images/edits", "/v1/videos")
"""Endpoints whose answers depend on a seed."""
CHAT = "/v1/chat/completions"
STEPS = {"num_inference_steps": 4}
PICTURE = "circle.png"


@dataclass(frozen=True)
class Call:
    path: str
    model: str
    body: dict[str, Any]
    files: dict[str, str] = field(default_factory=dict[str, str])


RANDOM_CALLS = (
    Call("/v1/images/generations", "random-image-maker", STEPS),
    Call(
        "/v1/images/edits",
        "random-inpainter",
        {"prompt": "a red circle", **STEPS},
        {"image": PICTURE, "mask": PICTURE},
    ),
    Call(
        "/v1/videos",
        "random-photo-mover",
        {"prompt": "a red circle moves", **STEPS},
        {"input_reference": PICTURE},
    ),
)
"""Calls of models that the documentation's examples do not name."""


@dataclass
class Outcome:
    """Answers of one call by both deployments."""

    call: Call
    expected: Any = None
    actual: Any = None
    failure: str = ""
    first_s: float = 0.0
    """Seconds until the first answer of the default deployment, whose replica had to start."""

    def compared(self) -> Difference:
        return difference(self.expected, self.actual)

    def as_json(self) -> dict[str, Any]:
        result = self.compared() if not self.failure else None
        facts = {"path": self.call.path, "model": self.call.model, "failure": self.failure}
        return facts | {"first_s": self.first_s, "difference": result and result.__dict__}


def rows(_sizes: Sizes) -> list[Row]:
    return [Row(name="demo calls equal to the CPU's", unit="calls", target=Target(ratio=1.0))]


def run(session: Session, rows: Sequence[Row]) -> None:
    from stoker.demo.setup import set_up

    (row,) = rows
    since = time.monotonic()
    server = session.service.server
    demo = set_up(server.base_url, server.data_dir)
    service = Service(server, session.report, key=demo.account_key)
    try:
        all_calls = _calls(session.sizes)
        has_diffusers = importlib.util.find_spec("diffusers") is not None
        calls = [call for call in all_calls if has_diffusers or call.path not in DRAWING]
        _deploy_on_cpu(service, {call.model for call in calls})
        outcomes = _asked(service, calls)
        row.details["deployments"] = {
            state["model"]: {name: state.get(name) for name in ("device", "status", "message")}
            for state in deployments(service.api)
            if state["workers"] and not state["model"].endswith(ON_CPU)
        }
        session.require_gpu_memory()
    finally:
        _delete_all(service)
    wrong = [outcome for outcome in outcomes if outcome.failure or outcome.compared().wrong]
    row.stoker, row.bare = len(outcomes) - len(wrong), len(outcomes)
    row.bare_note = "the same calls with device cpu and dtype float32"
    row.answers = f"{len(outcomes)} answers compared"
    if left_out := len(all_calls) - len(calls):
        row.answers += f", {left_out} calls left out because diffusers is not installed"
    row.wrong = "; ".join(_shown(outcome) for outcome in wrong)
    firsts = [outcome.first_s for outcome in outcomes if not outcome.failure]
    session.done(
        row,
        since,
        first_answer_p50_s=percentile(firsts, 0.5) if firsts else None,
        first_answer_most_s=max(firsts, default=None),
        calls=[outcome.as_json() for outcome in outcomes],
    )


def _shown(outcome: Outcome) -> str:
    why = outcome.failure or ", ".join(outcome.compared().wrong[:3])
    return f"{outcome.call.model} {outcome.call.path}: {why}"


def _calls(sizes: Sizes) -> list[Call]:
    """Returns the example calls of the documentation, chats, and calls of models without one."""
    from stoker.demo.examples import EXAMPLES, MEDIA_CALLS
    from stoker.models.tasks.registry import TASKS

    examples = [(TASKS[name].path, example) for name, example in EXAMPLES.items()]
    calls = [
        Call(path, example.model, dict(example.body), dict(example.files))
        for path, example in [*examples, *MEDIA_CALLS.items()]
    ]
    calls += RANDOM_CALLS
    calls += _chats()
    calls = [
        replace(call, body={"seed": SEED, **call.body}) if call.path in DRAWING else call
        for call in calls
    ]
    return [call for call in calls if not sizes.demo_models or call.model in sizes.demo_models]


def _chats() -> list[Call]:
    from stoker.demo.setup import MODELS

    picture = base64.b64encode((MODELS.parent / "media" / "scene.png").read_bytes()).decode()
    parts = [
        {"type": "text", "text": "What is in the picture?"},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{picture}"}},
    ]
    return [
        _chat("tiny-chat", "What is 7 plus 5?"),
        _chat("tiny-chat", "What is the capital of France?", logprobs=True, top_logprobs=2),
        _chat("tiny-vision", parts),
    ]


def _chat(model: str, content: Any, **wish: Any) -> Call:
    messages = [{"role": "user", "content": content}]
    return Call(CHAT, model, {"messages": messages, "max_tokens": 24, "temperature": 0, **wish})


def _deploy_on_cpu(service: Service, models: set[str]) -> None:
    """Deploys the models of the demo a second time."""
    for state in deployments(service.api):
        if state["model"] in models:
            artifact = {"artifact_id": state["artifact_id"], "pipeline": state["pipeline"]}
            body = {"model": state["model"] + ON_CPU, "readiness": "cold", **artifact, **CPU}
            service.api.post("/v1/deployments", json=body).raise_for_status()


def _asked(service: Service, calls: Sequence[Call]) -> list[Outcome]:
    """Runs all calls. Those of one model follow each other, so that only its first one waits for
    the replica.
    """
    outcomes = [Outcome(call) for call in calls]
    groups: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        groups.setdefault(outcome.call.model, []).append(outcome)

    def ask(group: Sequence[Outcome]) -> None:
        for outcome in group:
            _ask(service, outcome)

    with ThreadPoolExecutor(min(AT_ONCE, cores())) as threads:
        list(threads.map(ask, groups.values()))
    return outcomes


def _ask(service: Service, outcome: Outcome) -> None:
    call = outcome.call
    try:
        began = time.perf_counter()
        outcome.actual = _answer(service, call)
        outcome.first_s = time.perf_counter() - began
        outcome.expected = _answer(service, replace(call, model=call.model + ON_CPU))
    except (httpx.HTTPError, RuntimeError) as error:
        outcome.failure = f"{type(error).__name__}: {error}"[:600]


def _answer(service: Service, call: Call) -> Any:
    """Returns the JSON answer, or other content in base64. Raises `RuntimeError` for an error."""
    from stoker.demo.setup import MODELS

    with service.server.client(service.key) as client:
        client.timeout = CALL_S
        fields = {"model": call.model, **call.body}
        if call.files:
            media = MODELS.parent / "media"
            files = {name: (file, (media / file).read_bytes()) for name, file in call.files.items()}
            form = {k: v if isinstance(v, str) else json.dumps(v) for k, v in fields.items()}
            answer = client.post(call.path, data=form, files=files)
        else:
            answer = client.post(call.path, json=fields)
        if answer.is_error:
            raise RuntimeError(f"{answer.status_code} {answer.text}")
        if "json" not in answer.headers.get("content-type", ""):
            return {"bytes": base64.b64encode(answer.content).decode()}
        document = answer.json()
        return _video(client, document["id"]) if call.path == "/v1/videos" else document


def _video(client: httpx.Client, video: str) -> dict[str, Any]:
    """Waits for a video and returns its content in base64."""
    deadline = time.monotonic() + CALL_S
    while time.monotonic() < deadline:
        state = client.get(f"/v1/videos/{video}").raise_for_status().json()
        if state["status"] == "completed":
            content = client.get(f"/v1/videos/{video}/content").raise_for_status().content
            return {"bytes": base64.b64encode(content).decode()}
        if state["status"] == "failed":
            raise RuntimeError(f"the video failed: {state['error']}")
        time.sleep(0.05)
    raise RuntimeError(f"the video is not complete after {CALL_S} s")


def _delete_all(service: Service) -> None:
    clear(service)
    service.api.close()
