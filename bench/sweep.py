"""MiniLM's embeddings with varied lengths, lists and clients, and with requests that do not wait
for one another.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench import dtypes, load, machine, wrk
from bench.common import Plan, Report, clients_of, cores, progress, scratch
from bench.contenders import QUICK_S, Scene, left_out, of_ours, of_peer, warmed_up
from bench.load import Contender
from bench.open_loop import OpenLoop
from bench.samples import texts, texts_of
from bench.service import serving
from bench.workloads import OURS, WORKLOADS

CLIENTS = (1, 4, 16, 64, 256)
LENGTHS = (8, 32, 128, 510)
"""Words per text. With the special tokens, the last length is the model's maximum."""
LISTS = (1, 16, 256)
"""Texts per request."""
LENGTH_CLIENTS, LIST_CLIENTS = 16, 4
LOAD_S = 5
OFFERED = (50, 100, 200, 400)
"""Requests per second that arrive at random times."""
SOON_S = 0.2
"""Maximum seconds of an answer that counts."""
DIFFERENT = 96


@dataclass(frozen=True)
class Load:
    name: str
    bodies: Sequence[Mapping[str, Any]]
    clients: int
    inputs: int = 1
    """Inputs per request."""


def run(plan: Plan) -> Report:
    workload = WORKLOADS["embeddings"]
    report = Report("sweep", "MiniLM embeddings: clients, lengths, lists, requests at random")
    report.client.name = wrk.version()
    with scratch() as place, contextlib.ExitStack() as stack:
        bodies = workload.bodies(plan.sized(DIFFERENT, 8))
        scene = Scene(report, plan, workload, workload.folder(), bodies, place)
        service = stack.enter_context(serving(report, place / OURS))
        contenders = [
            *(of_ours(scene, service, dtype)[0] for dtype in _dtypes()),
            *(contender for peer in workload.peers for contender in of_peer(scene, stack, peer)),
        ]
        for contender in list(contenders):
            with left_out(report, contenders, contender):
                warmed_up(scene, contender)
        for number in range(plan.rounds):
            for measured_load in _loads(plan):
                for contender in list(contenders):
                    with left_out(report, contenders, contender):
                        _closed(scene, contender, measured_load, number)
            for rate in plan.sized(OFFERED, OFFERED[:1]):
                for contender in list(contenders):
                    _open(scene, contender, rate, number)
    _add_ratios(report, [contender.name for contender in contenders])
    report.notes += [
        "While one server is measured, the peers' processes are suspended, and ours is idle.",
        f"Clients: the texts of `throughput_embeddings`. Lengths: {LENGTH_CLIENTS} clients. Lists: "
        f"{LIST_CLIENTS} clients, texts of mixed lengths. The rate counts texts.",
        "At random: arrivals of a Poisson process, sent at their time without waiting for answers. "
        f"The rate counts answers within {SOON_S * 1e3:.0f} ms, over {LOAD_S} s. The client is in "
        "Python.",
        f"Each server has {cores()} cores.",
    ]
    return report


def _dtypes() -> list[str]:
    return ["auto", *([dtypes.BFLOAT16] if machine.has_bfloat16() else ())]


def _loads(plan: Plan) -> Iterator[Load]:
    bodies = [{"input": text} for text in texts(DIFFERENT)]
    for clients in plan.sized(CLIENTS, CLIENTS[:2]):
        yield Load(clients_of(clients), bodies, clients)
    for length in plan.sized(LENGTHS, LENGTHS[:1]):
        texts_of_length = [{"input": text} for text in texts_of(length, DIFFERENT)]
        yield Load(f"{length} words", texts_of_length, LENGTH_CLIENTS)
    for size in plan.sized(LISTS, LISTS[:1]):
        drawn = texts(size * 8)
        lists = [{"input": drawn[at : at + size]} for at in range(0, len(drawn), size)]
        yield Load(f"lists of {size}", lists, LIST_CLIENTS, size)


def _closed(scene: Scene, one: Contender, asked: Load, number: int) -> None:
    bodies = one.encoded(asked.bodies)
    least_s = scene.plan.sized(LOAD_S, QUICK_S)
    seconds = load.enough_s(least_s, asked.clients, load.alone_s(one, bodies))
    if number == 0:
        # The first requests of a shape build their kernels.
        load.measured(one, bodies, asked.clients, QUICK_S * max(1, seconds // LOAD_S))
    measured = load.measured(one, bodies, asked.clients, seconds)
    label = f"{one.name}, {asked.name}"
    scene.report.add(label, "texts/s", measured.rate * asked.inputs)
    scene.report.add(f"{label}, p99", "ms", measured.found.p99_ms)
    if measured.found.failed:
        scene.report.add(f"{label}, errors", "", measured.found.failed)
    scene.report.client.add(label, measured.found.cpu_seconds, measured.found.seconds)
    progress(f"round {number + 1}: {label}: {measured.rate * asked.inputs:.1f} texts/s")


def _open(scene: Scene, one: Contender, rate: float, number: int) -> None:
    bodies = scene.encoded(one)
    with one.awake():
        client = OpenLoop(one.base_url, one.path, one.key, bodies)
        result = client.run(rate, scene.plan.sized(LOAD_S, QUICK_S))
    soon = sum(seconds <= SOON_S for seconds in result.answered_s)
    label = f"{one.name}, {rate} a second at random"
    scene.report.add(label, "good/s", soon / result.seconds)
    scene.report.add(f"{label}, p99", "ms", result.ms(0.99))
    scene.report.client.add(label, result.client_cpu_s, result.seconds)
    progress(f"round {number + 1}: {label}: {soon / result.seconds:.1f} within {SOON_S:g} s")


def _add_ratios(report: Report, names: Sequence[str]) -> None:
    by_label = {item.label: item for item in report.series if item.unit in ("texts/s", "good/s")}
    ours = [name for name in names if name.startswith(OURS)]
    for label, series in list(by_label.items()):
        mine, _, measurement = label.rpartition(", ")
        for theirs in (name for name in names if name not in ours):
            other = by_label.get(f"{theirs}, {measurement}")
            if mine in ours and other:
                for item, two in zip(series.values, other.values, strict=False):
                    report.add(f"{mine} / {theirs}, {measurement}", "x", item / max(two, 1e-9))
