"""`python -m tests.support.preparing`: attempts of a preparation process behind a replica's walls.

It reads a JSON object: the folder, the folder that must stay hidden, the user to become, and pairs
of an attempt and its argument. It prints the problem of each attempt before the walls, in the
replica and in the preparation process.
"""

import json
import os
import pickle
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stoker import sandbox
from stoker.models.stages.base import Sample, Stages
from stoker.replica.counters import Counters
from stoker.replica.preparation.demand import PreparationDemand
from stoker.replica.preparation.parent import fork_parent
from stoker.replica.preparation.permits import Permits
from stoker.replica.preparation.pool import PreparationJob, PreparationPool, Prepared
from stoker.sandbox import gpu_places, places
from tests.support.confined import ATTEMPTS


def problem_of(attempt: str, argument: Any) -> str:
    try:
        return ATTEMPTS[attempt](argument)
    except OSError as error:
        return type(error).__name__


class Attempting(Stages):
    auto_class = ()

    def preprocess(self, item: Any, parameters: Mapping[str, Any]) -> list[Sample]:
        return [Sample({}, {"problem": problem_of(*item), "pid": os.getpid()})]

    def postprocess(
        self, outputs: Sequence[Mapping[str, Any]], parameters: Mapping[str, Any]
    ) -> Any:
        raise NotImplementedError


def main() -> None:
    question = json.load(sys.stdin)
    attempts: list[tuple[str, Any]] = [(name, argument) for name, argument in question["attempts"]]
    before = [problem_of(*attempt) for attempt in attempts]
    places.libraries()
    places.listed()
    gpu_places.libraries()
    permits = Permits.create()
    walls = sandbox.Walls(
        folder=Path(question["folder"]),
        kept_back=Path(question["kept_back"]),
        user=question["user"],
    )
    sandbox.confine(walls)
    parent = fork_parent(1, permits)
    assert parent
    replica = [problem_of(*attempt) for attempt in attempts]
    pool = PreparationPool(
        parent,
        PreparationDemand(),
        Counters(),
        is_hungry=lambda: True,
        loaded=lambda problem: None,
    )
    pool.load(pickle.dumps(Attempting(Path())))
    process: list[str] = []
    arrived = threading.Event()

    def deliver(outcome: Prepared) -> None:
        (sample,) = outcome()
        assert sample.extras["pid"] != os.getpid()
        process.append(sample.extras["problem"])
        if len(process) == len(attempts):
            arrived.set()

    for item in attempts:
        pool.put(PreparationJob(item, {}, "", is_done=lambda: False, deliver=deliver, prepare=list))
    assert arrived.wait(30)
    pool.finish()
    print(json.dumps({"before": before, "replica": replica, "process": process}))


if __name__ == "__main__":
    main()
