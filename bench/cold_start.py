"""Cold start: from the request to the first answer of a model that is not loaded."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.common import Report, at_most, percentile, scratch
from bench.models import bert_base, clip_base, llama_135m, minilm, texts
from bench.service import Service, request_body, serving
from bench.workloads import WORKLOADS

PIPELINE = "token-classification"
PATH = "/v1/classifications/token"
MODEL = "bert-base"
AIM_S = 0.5

_FRESH = """\
import sys, transformers
answer = transformers.pipeline(sys.argv[1], model=sys.argv[2])
answer(sys.argv[3])
"""


@dataclass(frozen=True)
class Kind:
    name: str
    folder: Callable[[], Path]
    pipeline: str
    path: str
    body: Mapping[str, Any]


TEXT = "now such like our over man"
STARTS = 20
"""Of each kind of model, whatever the rounds: enough for a median and the worst of them."""


def _kinds() -> list[Kind]:
    images = WORKLOADS["zero_shot_image"]
    chat = {"messages": [{"role": "user", "content": TEXT}], "max_tokens": 1}
    return [
        Kind("BERT-base", bert_base, PIPELINE, PATH, {"inputs": TEXT}),
        Kind("MiniLM", minilm, "feature-extraction", "/v1/embeddings", {"input": TEXT}),
        Kind("Llama 135 M", llama_135m, "text-generation", "/v1/chat/completions", chat),
        Kind("CLIP B/32", clip_base, images.pipeline, images.path, images.bodies(1)[0]),
    ]


def run(rounds: int) -> Report:
    report = Report("cold_start", "from the request to the first answer of a model not loaded")
    _against_fresh_python(report, rounds)
    with scratch() as place, serving(place) as service:
        for kind in _kinds():
            _many(report, service, kind)
    return report


def _many(report: Report, service: Service, kind: Kind) -> None:
    model = kind.name.split()[0].lower()
    deployment = service.deploy(kind.folder(), model, kind.pipeline, "cold")
    body = json.dumps({"model": model, **kind.body}).encode()
    seconds: list[float] = []
    for _ in range(STARTS):
        service.wait_status(deployment, "idle")
        with service.connect(kind.path) as connection:
            began = time.perf_counter()
            connection.post(body)
            seconds.append(time.perf_counter() - began)
        _cool(service, deployment)
    report.add(f"{kind.name}, p50 of {STARTS}", "s", percentile(seconds, 0.5))
    report.add(f"{kind.name}, p99 of {STARTS}", "s", percentile(seconds, 0.99))


def _against_fresh_python(report: Report, rounds: int) -> None:
    folder = bert_base()
    text = texts(1)[0]
    with scratch() as place, serving(place) as service:
        deployment = service.deploy(folder, MODEL, PIPELINE, "cold")
        service.wait_status(deployment, "idle")
        report.add("ours, the very first call", "s", _first_answer(service, text))
        _cool(service, deployment)
        for _ in range(rounds):
            ours = _first_answer(service, text)
            warm = _first_answer(service, text)
            _cool(service, deployment)
            peer = _fresh_python(folder, text)
            report.add("ours", "s", ours, aim=f"≤ {AIM_S} s", meets=at_most(AIM_S))
            report.add("ours, the second call", "s", warm)
            report.add("fresh Python and pipeline()", "s", peer)
            report.add("fresh Python / ours", "x", peer / ours)
    report.notes = [
        "The first rows: BERT-base, against fresh Python. The others: no peer, so no rounds.",
        "Ours: the server runs and its engine host has imported its libraries; the replica is "
        "forked by the request.",
        "The model's files are in the page cache for both.",
    ]


def _first_answer(service: Service, text: str) -> float:
    with service.connect(PATH) as connection:
        body = request_body(MODEL, text)
        started = time.perf_counter()
        connection.post(body)
        return time.perf_counter() - started


def _cool(service: Service, deployment: str) -> None:
    """End the replica and wait until the next request has to start another one."""
    service.change(deployment, "stop", "stopped")
    service.change(deployment, "start", "idle")


def _fresh_python(folder: Path, text: str) -> float:
    started = time.perf_counter()
    subprocess.run(
        [sys.executable, "-c", _FRESH, PIPELINE, str(folder), text],
        env={**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL,
        timeout=60,
        check=True,
    )
    return time.perf_counter() - started
