"""Cold start: from the request to the first answer of a model that is not loaded."""

import json
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import dtypes, launching
from bench.chat_models import llama_135m
from bench.common import Plan, Report, at_most, percentile, scratch
from bench.models import bert_base, clip_base, minilm
from bench.peers import environments
from bench.peers.environments import NotMadeError
from bench.peers.servers import OFFLINE
from bench.samples import texts
from bench.service import Service, request_body, serving
from bench.workloads import WORKLOADS

PIPELINE = "token-classification"
PATH = "/v1/classifications/token"
MODEL = "bert-base"
AIM_S = 0.5

_FRESH = """\
import sys, torch, transformers
dtype = getattr(torch, sys.argv[3])
answer = transformers.pipeline(sys.argv[1], model=sys.argv[2], dtype=dtype)
answer(sys.argv[4])
"""
FRESH = "fresh Python and pipeline()"


@dataclass(frozen=True)
class Kind:
    name: str
    folder: Callable[[], Path]
    pipeline: str
    path: str
    body: Mapping[str, Any]


TEXT = "now such like our over man"
STARTS = 20
"""Number of starts per kind of model, regardless of the rounds. Sufficient for a median and a
maximum.
"""


def _kinds() -> list[Kind]:
    images = WORKLOADS["zero_shot_image"]
    chat = {"messages": [{"role": "user", "content": TEXT}], "max_tokens": 1}
    return [
        Kind("BERT-base", bert_base, PIPELINE, PATH, {"inputs": TEXT}),
        Kind("MiniLM", minilm, "feature-extraction", "/v1/embeddings", {"input": TEXT}),
        Kind("Llama 135 M", llama_135m, "text-generation", "/v1/chat/completions", chat),
        Kind("CLIP B/32", clip_base, images.pipeline, images.path, images.bodies(1)[0]),
    ]


def run(plan: Plan) -> Report:
    report = Report("cold_start", "time to the first answer of a model that is not loaded")
    _against_fresh_python(report, plan.rounds)
    with scratch() as place, serving(report, place, side="ours, all kinds") as service:
        for kind in _kinds():
            _many(report, service, kind, plan.sized(STARTS, 2))
    report.notes += [
        "The first rows compare BERT-base with fresh Python. The others have no peer and no "
        "rounds.",
        "Ours: the server runs, its engine host has imported its libraries, and the request forks "
        "the replica.",
        "The model's files are in the page cache for both sides.",
    ]
    return report


def _many(report: Report, service: Service, kind: Kind, starts: int) -> None:
    model = kind.name.split()[0].lower()
    deployment = service.deploy(kind.folder(), model, kind.pipeline)
    body = json.dumps({"model": model, **kind.body}).encode()
    seconds: list[float] = []
    for _ in range(starts):
        service.wait_status(deployment, "idle")
        with service.connect(kind.path) as connection, report.client.asking(kind.name):
            began = time.perf_counter()
            connection.post(body)
            seconds.append(time.perf_counter() - began)
        if len(seconds) == starts:
            service.tell_engine(deployment)
        _cool(service, deployment)
    report.add(f"{kind.name}, p50 of {starts}", "s", percentile(seconds, 0.5))
    report.add(f"{kind.name}, p99 of {starts}", "s", percentile(seconds, 0.99))


def _against_fresh_python(report: Report, rounds: int) -> None:
    folder = bert_base()
    text = texts(1)[0]
    dtype = _best(report, folder, text)
    own_dtype = dtypes.of_ours(folder)
    with scratch() as place, serving(report, place) as service:
        report.settings["ours"]["dtype"] = own_dtype
        sides = {"ours": _cold(report, service, "ours", folder, text)}
        if dtype not in ("", own_dtype):
            name = f"ours, {dtype}"
            sides[name] = _cold(report, service, name, folder, text, dtype=dtype)
        for _ in range(rounds):
            peer = _fresh_python(report, folder, text, dtype) if dtype else None
            if peer:
                report.add(FRESH, "s", peer)
            for side, deployment in sides.items():
                ours = _first_answer(service, deployment, text)
                warm = _first_answer(service, deployment, text)
                _cool(service, deployment)
                report.add(side, "s", ours, aim=f"≤ {AIM_S} s", meets=at_most(AIM_S))
                report.add(f"{side}, the second call", "s", warm)
                if peer:
                    report.add(f"{FRESH} / {side}", "x", peer / ours)


def _cold(report: Report, service: Service, side: str, folder: Path, text: str, **wish: Any) -> str:
    """Returns a deployment that was called once and is not loaded."""
    model = "-".join([MODEL, *wish.values()])
    deployment = service.deploy(folder, model, PIPELINE, **wish)
    service.wait_status(deployment, "idle")
    report.add(f"{side}, the very first call", "s", _first_answer(service, deployment, text))
    service.tell_engine(deployment)
    _cool(service, deployment)
    return deployment


def _best(report: Report, folder: Path, text: str) -> str:
    """Returns the faster dtype of fresh Python. Empty if it is not available."""

    def rate(dtype: str) -> float:
        # The first run reads the files into the page cache and writes bytecode.
        _fresh_python(report, folder, text, dtype)
        return 1 / _fresh_python(report, folder, text, dtype)

    try:
        return dtypes.best(report, FRESH, "first answers a second", rate)
    except NotMadeError as error:
        report.left_out(FRESH, error)
        return ""


def _first_answer(service: Service, deployment: str, text: str) -> float:
    body = request_body(service.found(deployment)["model"], text)
    with service.connect(PATH) as connection:
        started = time.perf_counter()
        connection.post(body)
        return time.perf_counter() - started


def _cool(service: Service, deployment: str) -> None:
    """Ends the replica and waits until the next request must start another one."""
    service.change(deployment, "stop", "stopped")
    service.change(deployment, "start", "idle")


def _fresh_python(report: Report, folder: Path, text: str, dtype: str) -> float:
    """Returns the seconds until a separate process has answered. Raises `NotMadeError`."""
    command = [environments.python("pipeline"), "-c", _FRESH, PIPELINE, folder, dtype, text]
    launching.told(report, FRESH, command, OFFLINE)
    started = time.perf_counter()
    done = subprocess.run(
        command,
        env=launching.environment(OFFLINE),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=120,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"fresh Python failed:\n{done.stderr.decode()[-2000:]}")
    return time.perf_counter() - started
