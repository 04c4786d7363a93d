"""Stages of `bench path`: recorded stacks of the profiler, and their processor time."""

from typing import Any

import pytest

from bench import report_path, report_profile
from bench.path_stages import (
    GATEWAY,
    OTHER,
    REPLICA,
    Row,
    Thread,
    parse,
    shares,
    stage_of,
    unmatched,
    weighed,
)

ROOT = "/srv/checkout"
PACKAGES = f"{ROOT}/.venv/lib/python3.11/site-packages"
LIBRARY = "/usr/lib/python3.11"
HTTP = f"{ROOT}/stoker/platform/web/http.py"
CYCLE = f"{PACKAGES}/uvicorn/protocols/http/httptools_impl.py"
LOOP = [f"run ({ROOT}/stoker/server/serve.py)", f"Runner.run ({LIBRARY}/asyncio/runners.py)"]
REQUEST = [
    *LOOP,
    f"RequestResponseCycle.run_asgi ({CYCLE})",
    f"Starlette.__call__ ({PACKAGES}/starlette/applications.py)",
    f"RequestContext._answer ({HTTP})",
]
CALL = [
    *REQUEST,
    f"DirectCalls.__call__ ({ROOT}/stoker/inference/direct.py)",
    f"respond ({ROOT}/stoker/inference/routes.py)",
]
SEND = [
    *CALL,
    f"Router.call ({ROOT}/stoker/runtime/pool/routing.py)",
    f"ReplicaHandle.call ({ROOT}/stoker/runtime/pool/handle.py)",
    f"_GeneratorContextManager.__enter__ ({LIBRARY}/contextlib.py)",
    f"ReplicaHandle._outstanding ({ROOT}/stoker/runtime/pool/handle.py)",
]
SIDE = [
    f"NamedThread.run ({ROOT}/stoker/replica/named_thread.py)",
    f"QueueThread._run ({ROOT}/stoker/replica/queue_thread.py)",
]
ENGINE = [
    f"EngineThread._run ({ROOT}/stoker/replica/engine_thread.py)",
    f"EngineThread._work ({ROOT}/stoker/replica/engine_thread.py)",
]
FORWARD = [*ENGINE, f"TorchEngine.forward ({ROOT}/stoker/models/engines/torch.py)"]
FINISH = [*SIDE, f"TaskWorker._finish ({ROOT}/stoker/replica/worker.py)"]
PREPARE = [
    *SIDE,
    f"TaskWorker._accept ({ROOT}/stoker/replica/worker.py)",
    f"Preparer.prepare ({ROOT}/stoker/replica/preparation/preparer.py)",
]


def recorded(frames: list[str], thread: str = "thread (7): MainThread", count: int = 1) -> str:
    return ";".join([thread, *frames]) + f" {count}"


@pytest.mark.parametrize(
    ("stage", "frames"),
    [
        ("loop", LOOP),
        ("edge", [*LOOP, f"HttpConnection.data_received ({ROOT}/stoker/server/edge/protocol.py)"]),
        (
            "edge",
            [*REQUEST, f"_request_id ({HTTP})", f"new_id ({ROOT}/stoker/base/ids.py)"],
        ),
        ("log", [*REQUEST, f"Logger.info ({LIBRARY}/logging/__init__.py)"]),
        ("log", [*REQUEST, f"JsonFormatter.format ({ROOT}/stoker/base/logs.py)"]),
        (
            "key",
            [
                *CALL,
                f"_checked ({ROOT}/stoker/tenancy/keys/auth.py)",
                f"part_of ({ROOT}/stoker/platform/web/context.py)",
            ],
        ),
        ("key", [*CALL, f"CreditCheck.check ({ROOT}/stoker/tenancy/usage/balances.py)"]),
        (
            "parse",
            [
                *CALL,
                f"read ({ROOT}/stoker/inference/json_bodies.py)",
                f"Request.body ({PACKAGES}/starlette/requests.py)",
                f"RequestResponseCycle.receive ({CYCLE})",
            ],
        ),
        (
            "validate",
            [
                *CALL,
                f"validated ({ROOT}/stoker/inference/json_bodies.py)",
                f"BaseModel.model_validate_json ({PACKAGES}/pydantic/main.py)",
            ],
        ),
        ("route", [*CALL, f"unless_gone ({ROOT}/stoker/inference/streaming.py)"]),
        (
            "route",
            [
                *SEND[:-3],
                f"timeout ({LIBRARY}/asyncio/timeouts.py)",
            ],
        ),
        ("send", [*SEND, f"ReplicaHandle._send ({ROOT}/stoker/runtime/pool/handle.py)"]),
        ("send", [*SEND, f"Packing.pack ({ROOT}/stoker/wire/packing.py)"]),
        (
            "receive",
            [
                *LOOP,
                f"_ReplicaConnection.data_received ({ROOT}/stoker/runtime/pool/transport.py)",
                f"FrameReader.feed ({ROOT}/stoker/wire/framing.py)",
            ],
        ),
        (
            "count",
            [
                *SEND[:-3],
                f"Listeners._notify ({ROOT}/stoker/runtime/listening.py)",
                f"Counts.served ({ROOT}/stoker/tenancy/usage/counts.py)",
            ],
        ),
        (
            "write",
            [
                *REQUEST,
                f"Response.__call__ ({PACKAGES}/starlette/responses.py)",
                f"RequestContext._answer.<locals>.send_with_id ({HTTP})",
                f"MutableHeaders.__setitem__ ({PACKAGES}/starlette/datastructures.py)",
            ],
        ),
        ("other", [*LOOP, f"Supervision._check ({ROOT}/stoker/runtime/local/supervision.py)"]),
        ("other", [*LOOP, f"JobRunner.run ({ROOT}/stoker/platform/jobs/runner.py)"]),
        ("loop", [*LOOP, f"Task.step ({LIBRARY}/asyncio/tasks.py)"]),
        ("other", [f"_worker ({LIBRARY}/concurrent/futures/thread.py)"]),
    ],
)
def test_stages_of_the_gateway(stage: str, frames: list[str]) -> None:
    (sample,) = parse(recorded(frames))
    assert stage_of(sample.frames, GATEWAY) == stage


@pytest.mark.parametrize(
    ("stage", "frames"),
    [
        ("wait", [*SIDE, f"QueueThread._take_in ({ROOT}/stoker/replica/queue_thread.py)"]),
        ("wait", [f"Link.receive ({ROOT}/stoker/replica/link.py)"]),
        (
            "wait",
            [
                *ENGINE[:1],
                f"BatchQueue.wait ({ROOT}/stoker/replica/batching.py)",
                f"Condition.wait_for ({LIBRARY}/threading.py)",
                f"Condition.wait ({LIBRARY}/threading.py)",
            ],
        ),
        ("receive", [f"FrameReader.feed ({ROOT}/stoker/wire/framing.py)"]),
        (
            "prepare",
            [
                *PREPARE,
                f"TextStages.text_sample ({ROOT}/stoker/models/stages/text.py)",
                f"TokenizersBackend._encode_plus ({PACKAGES}/transformers/tokenization.py)",
            ],
        ),
        ("batch", [*ENGINE, f"choose ({ROOT}/stoker/replica/batch_choice.py)"]),
        ("batch", [*ENGINE, f"SharedLock.give ({ROOT}/stoker/replica/shared_lock.py)"]),
        (
            "collate",
            [
                *FORWARD,
                f"TorchEngine.batch ({ROOT}/stoker/models/engines/torch.py)",
                f"PaddedLayout._padded ({ROOT}/stoker/models/engines/layout.py)",
                f"pad ({PACKAGES}/torch/nn/functional.py)",
            ],
        ),
        ("pass", [*FORWARD, f"InferRequest.infer ({PACKAGES}/openvino/_ov_api.py)"]),
        (
            "post",
            [
                *FINISH,
                f"TextClassificationStages.postprocess ({ROOT}/stoker/models/tasks/text.py)",
            ],
        ),
        (
            "encode",
            [*FINISH, f"RequestState.encoded ({ROOT}/stoker/replica/task_request.py)"],
        ),
        (
            "send",
            [
                *FINISH,
                f"Replies.result ({ROOT}/stoker/replica/replies.py)",
                f"Link.wake ({ROOT}/stoker/replica/link.py)",
            ],
        ),
    ],
)
def test_stages_of_the_replica(stage: str, frames: list[str]) -> None:
    (sample,) = parse(recorded(frames))
    assert stage_of(sample.frames, REPLICA) == stage


def test_the_first_row_that_matches_a_frame_decides() -> None:
    rows = (Row("a", "one.py", "first"), Row("b", "one.py"), Row("c", "two.py"))
    assert stage_of(["first_part (one.py)"], rows) == "a"
    assert stage_of(["second (one.py)"], rows) == "b"
    assert stage_of(["run (two.py)", "second (one.py)", "help (three.py)"], rows) == "b"
    assert stage_of(["help (three.py)"], rows) == "other"


def test_samples_divide_the_processor_time_of_their_own_thread() -> None:
    folded = "\n".join(
        [
            recorded(LOOP, count=3),
            recorded([*CALL, f"authenticate ({ROOT}/stoker/tenancy/keys/auth.py)"]),
            # Many samples of a thread that waits for a core.
            recorded([f"work ({LIBRARY}/queue.py)"], "thread (8): Thread-1 (worker)", 100),
            recorded([f"run ({LIBRARY}/x.py)"], "thread (0x9)", 5),
        ]
    )
    threads = {
        7: Thread("python", 0.8),
        8: Thread("python", 0.1),
        10: Thread("engine", 0.1),
    }
    weights = list(weighed(parse(folded), threads, GATEWAY))
    assert shares(weights) == pytest.approx({"loop": 0.6, "key": 0.2, "other": 0.1, "pass": 0.1})
    assert unmatched(weights) == pytest.approx({"work (queue.py)": 0.1})


def test_the_page_explains_every_stage() -> None:
    tables = {"gateway": GATEWAY, "replica": REPLICA}
    for side, rows in tables.items():
        assert {OTHER, *(row.stage for row in rows)} == set(report_profile.STAGES[side])


def made(finished_at: str, **medians: float) -> dict[str, Any]:
    """Returns a result with figures by label. `__` stands for `: ` in a label."""
    labels = {name.replace("__", ": "): value for name, value in medians.items()}
    series = [
        {
            "label": f"16 clients, {label}",
            "unit": "µs",
            **dict.fromkeys(("median", "min", "max"), value),
            "aim": None,
            "verdict": None,
        }
        for label, value in labels.items()
    ]
    facts = {"class": "avx2", "cpu": "a processor", "cores": 2, "flags": ["avx2"], "commit": None}
    return {
        "rounds": 3,
        "finished_at": finished_at,
        "machine": facts,
        "series": series,
        "notes": ["A note."],
    }


def test_the_page_shows_stages_before_and_now_in_the_order_of_a_request() -> None:
    before = made("2026-01-01", gateway=300, gateway__loop=250, gateway__edge=50)
    now = made("2026-02-01", gateway=200, gateway__loop=180, gateway__edge=20, replica__post=7)
    now["series"][0]["aim"] = "≤ 250 µs"
    page = report_path.page({"path_text": [now]}, {"path_text": [before]})
    assert (
        "\n".join(
            [
                "|  | AVX2, before | AVX2, now |  | aim |",
                "| --- | --- | --- | --- | --- |",
                "| edge | 50 | 20 | µs |  |",
                "| loop | 250 | 180 | µs |  |",
                "| total | 300 | 200 | µs | ≤ 250 µs |",
            ]
        )
        in page
    )
    assert "| post |  | 7 | µs |  |" in page
    assert "| 16 clients, gateway | 300 | 200 | µs | ≤ 250 µs |" in page
    assert "gateway: loop" not in page
