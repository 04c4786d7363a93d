"""Cold start: from the request to the first answer of a model that is not loaded."""

import os
import subprocess
import sys
import time
from pathlib import Path

from bench.common import Report, at_most, scratch
from bench.models import bert_base, texts
from bench.service import Service, request_body, serving

PIPELINE = "token-classification"
PATH = "/v1/classifications/token"
MODEL = "bert-base"
AIM_S = 0.5

_FRESH = """\
import sys, transformers
answer = transformers.pipeline(sys.argv[1], model=sys.argv[2])
answer(sys.argv[3])
"""


def run(rounds: int) -> Report:
    report = Report("cold_start", "BERT-base, from the request to the first answer")
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
        "Ours: the server runs and its engine host has imported its libraries; the replica is "
        "forked by the request.",
        "The model's files are in the page cache for both.",
    ]
    return report


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
