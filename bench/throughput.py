"""Throughput: closed loops of clients, against what people run instead."""

import contextlib
import json
import statistics
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import dtypes, load, wrk
from bench.common import Plan, Report, at_least, clients_of, cores, progress, scratch
from bench.inprocess import in_process
from bench.load import Contender
from bench.peers import servers
from bench.peers.environments import NotMadeError
from bench.peers.servers import PeerServer
from bench.service import Service, serving
from bench.workloads import BEST, LIMIT, OURS, WORKLOADS, Peer, Workload
from stoker.trials.comparison import Comparison, Measure
from stoker.wire.protocol import Execution

TRIAL_S, QUICK_S = 6, 2
"""Of each dtype of a peer, and of a first load that is not counted."""
TRIAL_CLIENTS = 16
LIMIT_REQUESTS, LIMIT_BATCHES = 32, (1, 8)

_AGREEMENTS: Mapping[Measure, tuple[str, float]] = {
    "top_labels": ("share of equal top labels", 1.0),
    "cosine": ("least cosine", 0.999),
    "texts": ("share of equal texts", 1.0),
}
"""What is compared → its name, and from which on a dtype counts as good as the exact one."""
_PEERS: Mapping[Peer, Callable[[Path, str, str], PeerServer]] = {
    "fastapi": servers.fastapi,
    "litserve": servers.litserve,
    "infinity": servers.infinity,
}


def of(name: str) -> Callable[[Plan], Report]:
    """The benchmark of a workload."""
    return lambda plan: run(WORKLOADS[name], name, plan)


@dataclass(frozen=True)
class Scene:
    """What all that is measured in one benchmark has in common."""

    report: Report
    plan: Plan
    workload: Workload
    folder: Path
    bodies: Sequence[Mapping[str, Any]]
    place: Path

    def encoded(self, contender: Contender) -> list[bytes]:
        return [json.dumps({**body, **contender.body}).encode() for body in self.bodies]

    @property
    def trial_clients(self) -> int:
        return self.plan.sized(TRIAL_CLIENTS, 4)

    def trial_s(self, alone_s: float) -> int:
        """How long a trial is for whom a request takes so long."""
        seconds = self.plan.sized(TRIAL_S, QUICK_S)
        return load.enough_s(seconds, self.trial_clients, alone_s)


def run(workload: Workload, name: str, plan: Plan) -> Report:
    name = "throughput" if name == "text" else f"throughput_{name}"
    report = Report(name, f"{workload.title} over HTTP, closed loops")
    report.client.name = wrk.version()
    bodies = workload.bodies(plan.sized(workload.cycle, 8))
    with scratch() as place, contextlib.ExitStack() as stack:
        scene = Scene(report, plan, workload, workload.folder(), bodies, place)
        service = stack.enter_context(serving(report, place / OURS))
        ours, converted = _ours(scene, service, "auto")
        peers = [one for peer in workload.peers for one in _peer(scene, stack, peer)]
        others = list(_of_other_dtypes(scene, service))
        _compare(scene, ours, others)
        contenders = [ours, *others, *peers]
        # The limit first, while all else is suspended or idle.
        _measure_limit(scene, converted)
        _measure(scene, contenders)
    report.notes += [
        "While one server is measured, the peers' processes are suspended; ours only idles.",
        f"Ours is deployed as by itself and has worked until it ran as it will: with "
        f"{'OpenVINO' if converted else 'torch'}, as the loop does. Each peer computes in what is "
        "faster for it.",
        f"The same {len(bodies)} requests in turn for all; every one has {cores()} cores.",
        "Peak memory: resident sets of the process tree added up, so pages that forked processes "
        "share count several times.",
    ]
    return report


def _ours(scene: Scene, service: Service, dtype: str) -> tuple[Contender, Execution | None]:
    """Ours in a dtype, as it runs once it has settled, and on what, if it was converted."""
    wish = {} if dtype == "auto" else {"dtype": dtype}
    model = "-".join(["measured", *wish.values()])
    workload = scene.workload
    deployment = service.deploy(scene.folder, model, workload.pipeline, readiness="hot", **wish)
    contender = Contender(
        ", ".join([OURS, *wish.values()]),
        service.pid,
        service.base_url,
        workload.path,
        {"model": model},
        service.key,
        is_suspended=False,
    )
    return contender, service.settle(deployment, workload.path, scene.encoded(contender))


def _of_other_dtypes(scene: Scene, service: Service) -> Iterator[Contender]:
    """Ours in each that it computes in only where it is asked to. What it cannot is left out."""
    settings = scene.report.settings
    own = settings[OURS]["dtype"] = dtypes.of_ours(scene.folder)
    for dtype in dtypes.ours():
        if dtype == own:
            continue
        try:
            yield _ours(scene, service, dtype)[0]
        except RuntimeError as error:
            scene.report.left_out(f"{OURS}, {dtype}", error)


def _compare(scene: Scene, ours: Contender, others: Sequence[Contender]) -> None:
    """How far the answers in each dtype agree with those that ours gives by itself."""
    exact = _answers(scene, ours)
    for one in others:
        comparison = Comparison()
        for pair in zip(exact, _answers(scene, one), strict=True):
            comparison.add(*pair)
        name, least = _AGREEMENTS[comparison.measure]
        scene.report.add(
            f"{one.name}: {name}",
            "",
            comparison.agreement,
            aim=f"≥ {least:g}",
            meets=at_least(least),
        )


def _answers(scene: Scene, contender: Contender) -> list[bytes]:
    with contender.connect() as connection:
        return [connection.post(body) for body in scene.encoded(contender)]


def _peer(scene: Scene, stack: contextlib.ExitStack, peer: Peer) -> Iterator[Contender]:
    """A peer in the dtype that is the best for it; nothing where it cannot be had."""
    start, pipeline = _PEERS[peer], scene.workload.pipeline

    def rate(dtype: str) -> float:
        with _running(scene, start(scene.folder, pipeline, dtype)) as contender:
            seconds = scene.trial_s(_warmed_up(scene, contender))
            asked = scene.encoded(contender)
            trial = load.measured(contender, asked, scene.trial_clients, seconds)
        if trial.found.failed:
            raise RuntimeError(trial.found.failure)
        return trial.rate

    try:
        server = start(scene.folder, pipeline, dtypes.FLOAT32)
        unit = f"req/s, {clients_of(scene.trial_clients)}"
        dtype = dtypes.best(scene.report, server.name, unit, rate)
        server = start(scene.folder, pipeline, dtype)
        yield stack.enter_context(_running(scene, server))
    except (NotMadeError, RuntimeError) as error:
        scene.report.left_out(peer, error)


@contextlib.contextmanager
def _running(scene: Scene, server: PeerServer) -> Generator[Contender]:
    with servers.started(scene.report, server, scene.place) as running:
        yield Contender(server.name, running.pid, running.base_url, server.path, server.body)


def _measure_limit(scene: Scene, converted: Execution | None) -> None:
    """The same engine in a loop, without a server."""
    report, asked = scene.report, scene.bodies[:LIMIT_REQUESTS]
    given = (scene.workload.task, scene.folder, scene.place, converted)
    with in_process(report, *given) as child:
        for _ in range(scene.plan.rounds):
            for batch in LIMIT_BATCHES:
                child.run(asked, batch)
                rate = len(asked) / sum(child.run(asked, batch))
                report.add(f"in-process, batch {batch}", "req/s", rate)


def _measure(scene: Scene, contenders: list[Contender]) -> None:
    """In turn: each load of every one before the next load."""
    loads = scene.plan.sized(scene.workload.loads, dict.fromkeys((1, 4), QUICK_S))
    slowest_s = 0.0
    for one in list(contenders):
        with _left_out(scene.report, contenders, one):
            slowest_s = max(slowest_s, _warmed_up(scene, one))
    for number in range(scene.plan.rounds):
        for clients, seconds in loads.items():
            enough_s = load.enough_s(seconds, clients, slowest_s)
            for one in list(contenders):
                with _left_out(scene.report, contenders, one):
                    found = load.measured(one, scene.encoded(one), clients, enough_s)
                    load.add(scene.report, one.name, clients, found)
                    label = f"{one.name}, {clients_of(clients)}"
                    progress(f"round {number + 1}: {label}: {found.rate:.1f} req/s")
    _add_ratios(scene, [one.name for one in contenders], list(loads))


def _warmed_up(scene: Scene, contender: Contender) -> float:
    """How long a client alone waits then. Raises RuntimeError where nothing is answered."""
    asked = scene.encoded(contender)
    seconds = scene.trial_s(load.alone_s(contender, asked))
    load.measured(contender, asked, scene.trial_clients, seconds)
    return load.alone_s(contender, asked)


@contextlib.contextmanager
def _left_out(report: Report, contenders: list[Contender], one: Contender) -> Generator[None]:
    """Go on without a peer that fails. Ours must not."""
    try:
        yield
    except RuntimeError as error:
        if not one.is_suspended:
            raise
        contenders.remove(one)
        report.left_out(one.name, error)


def _add_ratios(scene: Scene, names: Sequence[str], clients: Sequence[int]) -> None:
    """Ours against each peer, and against the limit, round by round."""
    report, aims = scene.report, scene.workload.aims
    rates = {series.label: series.values for series in report.series if series.unit == "req/s"}
    limits = zip(*(rates[f"in-process, batch {batch}"] for batch in LIMIT_BATCHES), strict=True)
    best = [max(pair) for pair in limits]
    inexact = {one.label.partition(":")[0] for one in report.series if one.verdict == "MISSED"}
    ours = [name for name in names if name.startswith(OURS)]
    for count in clients:
        suffix = f", {clients_of(count)}"
        theirs = {name: rates[name + suffix] for name in names if name not in ours}
        for mine in ours:
            for name, others in (theirs | {LIMIT: best}).items():
                ratio = f"{mine} / {name}"
                _add_ratio(report, ratio + suffix, rates[mine + suffix], others, aims)
        if theirs:
            # Of a noisy round the best would be whoever was lucky in it.
            exact = (rates[one + suffix] for one in ours if one not in inexact)
            most = max(exact, key=statistics.median), max(theirs.values(), key=statistics.median)
            _add_ratio(report, f"{BEST}{suffix}", *most, aims)


def _add_ratio(
    report: Report,
    label: str,
    mine: Sequence[float],
    others: Sequence[float],
    aims: Mapping[str, float],
) -> None:
    aim = aims.get(label)
    for one, other in zip(mine, others, strict=False):
        report.add(
            label,
            "x",
            one / other,
            aim=f"≥ {aim:g}" if aim else "",
            meets=at_least(aim) if aim else None,
        )
