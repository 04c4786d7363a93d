"""Row of sleeping models: from the request to the answer of a model that is in main memory."""

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from typing import Any

from bench import launching
from bench.common import percentile
from bench.gpu import models
from bench.gpu.checkpoint import UNSUPPORTED
from bench.gpu.results import Row, Target
from bench.gpu.session import MissingError, Session
from bench.gpu.sizes import Sizes
from bench.gpu.tasks import MINILM
from bench.samples import texts
from bench.service import Service, serving

CHECKPOINT_S = 60
ASLEEP_S = 30.0
"""Timeout of a replica's move to main memory in seconds."""
CLAIM_FACTOR, CLAIM_BYTES = 1.1, 1 << 30
"""Estimate of a replica's claim: a multiple of its weights, plus bytes for its context and work."""
RESTORES = 3


def rows(sizes: Sizes) -> list[Row]:
    name = f"restore of {sizes.held_bytes / 2**30:.3g} GiB from main memory"
    return [Row(name=name, unit="s", target=Target(most=1.0))]


def run(session: Session, rows: Sequence[Row]) -> None:
    """Measures calls of a sleeping model, and the driver's restore of a process with as much
    memory. Raises `MissingError` if the driver has no checkpoint functions.
    """
    (row,) = rows
    since = time.monotonic()
    size = session.sizes.held_bytes
    before = session.bare("hold", size=size)
    steps = _checkpoint(session)
    after = session.bare("checksum")
    session.end_bare()
    row.bare, row.bare_note = steps["wake"], "the driver's restore of a process"
    row.details |= {"steps_s": steps, "bytes": size}
    if before != after:
        raise RuntimeError(f"the driver restored other bytes: {after} instead of {before}")
    with _server(session) as service:
        row.stoker, row.wrong, details = _restores(service, session.sizes)
    row.answers = f"{RESTORES} answers compared with those before the sleep"
    session.done(row, since, **details)


@contextlib.contextmanager
def _server(session: Session) -> Generator[Service]:
    """Starts a second server that may use so much of the card that one of two models fits."""
    (device, *_) = session.machine()["devices"]
    claim = CLAIM_FACTOR * session.sizes.held_bytes + CLAIM_BYTES
    with serving(
        session.report,
        session.place / "sleep",
        side="ours, sleep",
        imported=session.environment,
        gpu_memory_share=round(1.5 * claim / device["total_bytes"], 4),
        gpu_prepared_workers=0,
    ) as service:
        yield service


def _restores(service: Service, sizes: Sizes) -> tuple[float, str, dict[str, Any]]:
    """Returns the median seconds of a call that wakes its model, why an answer is wrong, and
    details.
    """
    artifact = service.push(
        models.large_encoder(sizes), "--name", "sleeper", "--pipeline", MINILM.pipeline
    )["id"]
    first, second = (_deploy(service, artifact, model) for model in ("sleeper-1", "sleeper-2"))
    expected, loading_s = _call(service, "sleeper-1")
    seconds: list[float] = []
    wrong = ""
    for _ in range(RESTORES):
        # The first model sleeps to make room for the second one, which is then removed.
        _call(service, "sleeper-2")
        _wait_asleep(service, first)
        service.change(second, "stop", "stopped")
        answer, restore_s = _call(service, "sleeper-1")
        seconds.append(restore_s)
        wrong = wrong or ("" if answer == expected else "the vector differs after the sleep")
        service.change(second, "start", "idle")
    details = {"seconds": seconds, "loading_s": loading_s, "workers": _workers(service, first)}
    return percentile(seconds, 0.5), wrong, details


def _deploy(service: Service, artifact: str, model: str) -> str:
    body = {"model": model, "artifact_id": artifact, "readiness": "warm", "dtype": "float32"}
    return service.api.post("/v1/deployments", json=body).raise_for_status().json()["id"]


def _call(service: Service, model: str) -> tuple[list[float], float]:
    """Returns a model's vector of a text, and the seconds of the call."""
    body = json.dumps({"model": model, "input": texts(1)[0]}).encode()
    with service.connect(MINILM.path) as connection:
        began = time.perf_counter()
        answer = json.loads(connection.post(body))
        seconds = time.perf_counter() - began
    return answer["data"][0]["embedding"], seconds


def _wait_asleep(service: Service, deployment: str) -> None:
    deadline = time.monotonic() + ASLEEP_S
    while workers := _workers(service, deployment):
        if workers[0]["status"] == "asleep":
            return
        if time.monotonic() > deadline:
            raise RuntimeError(f"the model did not fall asleep: {workers}")
        time.sleep(0.02)
    events = service.api.get(f"/v1/deployments/{deployment}/events").json()
    raise RuntimeError(f"the model was unloaded instead: {events}")


def _workers(service: Service, deployment: str) -> list[dict[str, Any]]:
    return service.found(deployment)["workers"]


def _checkpoint(session: Session) -> dict[str, float]:
    """Returns the seconds of each step for the bare loops' process."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.gpu.checkpoint", str(session.bare_pid)],
        env=launching.environment(session.environment),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=CHECKPOINT_S,
        check=False,
    )
    if done.returncode == UNSUPPORTED:
        raise MissingError(f"the driver keeps no checkpoints: {done.stdout.strip()}")
    if done.returncode:
        raise RuntimeError(f"the checkpoint failed: {done.stderr.strip()[-300:]}")
    return json.loads(done.stdout)
