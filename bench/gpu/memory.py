"""Rows of memory: what Stoker claims for its replicas, and what they use."""

import json
import time
from collections.abc import Sequence
from typing import Any

from bench.gpu import models
from bench.gpu.results import Row, Target
from bench.gpu.session import Session, deployments
from bench.gpu.sizes import Sizes
from bench.gpu.tasks import MINILM
from bench.samples import texts

SETTLE_S = 2.0
"""Seconds until a replica has measured its memory after its first answer."""
MIB = 2**20


def rows(sizes: Sizes) -> list[Row]:
    return [
        Row(
            name=f"claimed memory, {count} replica{'s' if count > 1 else ''}",
            unit="MiB",
            target=Target(within=0.1),
        )
        for count in (1, sizes.replicas)
    ]


def run(session: Session, rows: Sequence[Row]) -> None:
    session.end_bare()
    sizes, service = session.sizes, session.service
    folder = models.minilm(sizes)
    artifact = service.push(folder, "--name", "memory", "--pipeline", MINILM.pipeline)["id"]
    text = texts(1)[0]
    vectors: list[list[float]] = []
    since = time.monotonic()
    for number in range(sizes.replicas):
        model = f"memory-{number}"
        body = {"model": model, "artifact_id": artifact, "readiness": "warm"}
        service.api.post("/v1/deployments", json=body).raise_for_status()
        request = json.dumps({"model": model, "input": text}).encode()
        with service.connect(MINILM.path) as connection:
            answer = json.loads(connection.post(request))
        vectors.append(answer["data"][0]["embedding"])
        if number + 1 in (1, sizes.replicas):
            time.sleep(SETTLE_S)
            row = rows[0] if number == 0 else rows[1]
            claimed, used, details = _memory(session)
            row.stoker, row.bare = claimed / MIB, used / MIB
            row.bare_note = details["measured_by"]
            row.wrong = _first_other(vectors)
            row.answers = f"{len(vectors)} answers of equal models compared"
            session.done(row, since, **details)


def _memory(session: Session) -> tuple[int, int, dict[str, Any]]:
    """Returns claimed and used bytes of the card, or of main memory without a GPU."""
    machine = session.machine()
    workers = [worker for state in deployments(session.service.api) for worker in state["workers"]]
    details = {"machine": machine["memory"], "devices": machine["devices"], "workers": workers}
    used = session.grown_bytes
    if used is not None:
        claimed = sum(device["held_bytes"] for device in machine["devices"][:1])
        return claimed, used, details | {"measured_by": "nvidia-smi, less what was used before"}
    used = sum(worker["memory_bytes"] or 0 for worker in workers)
    return machine["memory"]["held_bytes"], used, details | {"measured_by": "the replicas' shares"}


def _first_other(vectors: Sequence[Sequence[float]]) -> str:
    """Returns which replica answered differently from the first one. Empty if none did."""
    from bench.gpu.answers import wrong_vector

    for number, vector in enumerate(vectors):
        if wrong := wrong_vector(vectors[:1], 0, vector):
            return f"replica {number}: {wrong}"
    return ""
