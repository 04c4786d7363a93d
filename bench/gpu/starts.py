"""Rows of starts: from the request to the first answer of a model that is not loaded."""

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from bench.common import percentile
from bench.gpu import models
from bench.gpu.results import Row, Target
from bench.gpu.session import Session
from bench.gpu.sizes import Sizes
from bench.gpu.tasks import BERT

MODEL = "bert-cold"
TEXT = "now such like our over man"
BARE_STARTS = 3
PREPARED_S = 20
"""Timeout of the wait for a prepared worker in seconds."""


def rows(_sizes: Sizes) -> list[Row]:
    return [
        Row(name="cold start to first answer, BERT-base, p50", unit="s", target=Target(most=0.6)),
        Row(name="the same with a prepared worker, p50", unit="s", target=Target(most=0.35)),
    ]


def run(session: Session, rows: Sequence[Row]) -> None:
    cold_row, prepared_row = rows
    folder = models.bert(session.sizes)
    bare = [
        session.bare("start", folder=str(folder), text=TEXT)
        for _ in range(min(BARE_STARTS, session.sizes.starts))
    ]
    expected = session.bare("encode", kind="tokens", folder=str(folder), inputs=[TEXT], batch=1)
    session.bare("forget")
    service = session.service
    deployment = service.deploy(folder, MODEL, BERT.pipeline, readiness="cold")
    body = json.dumps({"model": MODEL, "inputs": TEXT}).encode()
    seconds: dict[bool, list[float]] = {False: [], True: []}
    """Maps True to the starts in a prepared worker, and False to the others."""
    wrong = ""
    since = time.monotonic()
    has_workers = _wait_prepared(session)
    for number in range(session.sizes.starts):
        session.wait(deployment, "idle")
        # No worker is prepared shortly after a start.
        is_prepared = has_workers and number % 2 == 0 and _wait_prepared(session)
        is_prepared = is_prepared or _has_prepared_workers(session)
        with service.connect(BERT.path) as connection:
            began = time.perf_counter()
            answer = json.loads(connection.post(body))
            seconds[is_prepared].append(time.perf_counter() - began)
        wrong = wrong or BERT.wrong(expected["answers"], 0, answer)
        session.require_gpu(deployment)
        described = session.describe(deployment)
        service.change(deployment, "stop", "stopped")
        service.change(deployment, "start", "idle")
    for is_prepared, row in ((False, cold_row), (True, prepared_row)):
        if not (of_row := seconds[is_prepared]):
            continue
        row.stoker, row.bare, row.wrong = percentile(of_row, 0.5), min(bare), wrong
        row.bare_note = "weights and first pass in a process that has its device context"
        row.answers = f"{len(of_row)} answers compared"
        session.done(row, since, seconds=of_row, bare_seconds=bare, deployment=described)
    if not seconds[False]:
        cold_row.skip("all starts used a prepared worker")
    if not seconds[True]:
        prepared_row.skip("GET /v1/machine names no prepared workers")
    session.results.save()


def _wait_prepared(session: Session) -> bool:
    """Waits until the server has a prepared worker. Returns False if it gets none."""
    deadline = time.monotonic() + PREPARED_S
    while session.machine()["devices"] and time.monotonic() < deadline:
        if _has_prepared_workers(session):
            return True
        time.sleep(0.1)
    return False


def _has_prepared_workers(session: Session) -> bool:
    """Returns True if the server reports prepared workers on the device."""
    return any(_names(device, "prepared") for device in session.machine()["devices"])


def _names(device: Mapping[str, Any], word: str) -> bool:
    return any(word in name and value for name, value in device.items())
