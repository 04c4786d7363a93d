"""Throughput: closed loops of clients, compared with other servers."""

import contextlib
import statistics
from collections.abc import Callable, Mapping, Sequence

from bench import load, wrk
from bench.common import Plan, Report, at_least, clients_of, cores, progress, scratch
from bench.contenders import QUICK_S, Scene, in_other_dtypes, left_out, of_ours, of_peer, warmed_up
from bench.inprocess import in_process
from bench.load import Contender, Measured
from bench.service import serving
from bench.workloads import BEST, LIMIT, OURS, WORKLOADS, Workload
from stoker.wire.protocol import Execution
from stoker.workloads.evaluation.replay.comparison import Comparison, Measure

LIMIT_REQUESTS, LIMIT_BATCHES = 32, (1, 8)

_AGREEMENTS: Mapping[Measure, tuple[str, float]] = {
    "top_labels": ("share of equal top labels", 1.0),
    "cosine": ("least cosine", 0.999),
    "texts": ("share of equal texts", 1.0),
}
"""Maps a comparison to its label and to the minimum at which a dtype counts as equal to the exact
one.
"""


def of(name: str) -> Callable[[Plan], Report]:
    """Returns the benchmark of a workload."""
    return lambda plan: run(WORKLOADS[name], name, plan)


def run(workload: Workload, name: str, plan: Plan) -> Report:
    name = "throughput" if name == "text" else f"throughput_{name}"
    report = Report(name, f"{workload.title} over HTTP, closed loops")
    report.client.name = wrk.version()
    bodies = workload.bodies(plan.sized(workload.cycle, 8))
    with scratch() as place, contextlib.ExitStack() as stack:
        scene = Scene(report, plan, workload, workload.folder(), bodies, place)
        service = stack.enter_context(serving(report, place / OURS))
        ours, converted = of_ours(scene, service, "auto")
        peers = [contender for peer in workload.peers for contender in of_peer(scene, stack, peer)]
        other_dtypes = list(in_other_dtypes(scene, service))
        _compare(scene, ours, other_dtypes)
        contenders = [ours, *other_dtypes, *peers]
        # The limit is measured first, while all others are suspended or idle.
        _measure_limit(scene, converted)
        _measure(scene, contenders)
    report.notes += [
        "While one server is measured, the peers' processes are suspended, and ours is idle.",
        f"Ours has the default settings and its final engine, "
        f"{'OpenVINO' if converted else 'torch'}, as the loop has. Each peer has its faster dtype.",
        f"All servers get the same {len(bodies)} requests in turn, and have {cores()} cores.",
        f"A load with fewer than {load.LEAST_ANSWERS} answers is repeated for at most "
        f"{load.MOST_S} s.",
        "Peak memory: sum of the resident sets of the process tree, so pages that forked processes "
        "share count several times.",
    ]
    return report


def _compare(scene: Scene, ours: Contender, others: Sequence[Contender]) -> None:
    """Measures the agreement of each dtype's answers with those of Stoker's default."""
    exact = _answers(scene, ours)
    for contender in others:
        comparison = Comparison()
        for pair in zip(exact, _answers(scene, contender), strict=True):
            comparison.add(*pair)
        name, least = _AGREEMENTS[comparison.measure]
        scene.report.add(
            f"{contender.name}: {name}",
            "",
            comparison.agreement,
            aim=f"≥ {least:g}",
            meets=at_least(least),
        )


def _answers(scene: Scene, contender: Contender) -> list[bytes]:
    with contender.connect() as connection:
        return [connection.post(body) for body in scene.encoded(contender)]


def _measure_limit(scene: Scene, converted: Execution | None) -> None:
    """Measures the same engine in a loop, without a server."""
    report, bodies = scene.report, scene.bodies[:LIMIT_REQUESTS]
    arguments = (scene.workload.task, scene.folder, scene.place, converted)
    with in_process(report, *arguments) as child:
        for _ in range(scene.plan.rounds):
            for batch in LIMIT_BATCHES:
                child.run(bodies, batch)
                rate = len(bodies) / sum(child.run(bodies, batch))
                report.add(f"in-process, batch {batch}", "req/s", rate)


def _measure(scene: Scene, contenders: list[Contender]) -> None:
    """Measures each load for all contenders before the next load."""
    loads = scene.plan.sized(scene.workload.loads, dict.fromkeys((1, 4), QUICK_S))
    slowest_s = 0.0
    for contender in list(contenders):
        with left_out(scene.report, contenders, contender):
            slowest_s = max(slowest_s, warmed_up(scene, contender))
    # Slow contenders need longer loads, in all rounds.
    lengths: dict[tuple[str, int], int] = {}
    for number in range(scene.plan.rounds):
        for clients, seconds in loads.items():
            enough_s = load.enough_s(seconds, clients, slowest_s)
            for contender in list(contenders):
                with left_out(scene.report, contenders, contender):
                    length = lengths.get((contender.name, clients), enough_s)
                    measured_load, length = _measured(scene, contender, clients, length)
                    lengths[contender.name, clients] = length
                    load.add(scene.report, contender.name, clients, measured_load)
                    label = f"{contender.name}, {clients_of(clients)}"
                    progress(f"round {number + 1}: {label}: {measured_load.rate:.1f} req/s")
    _add_ratios(scene, [contender.name for contender in contenders], list(loads))


def _measured(
    scene: Scene, contender: Contender, clients: int, seconds: int
) -> tuple[Measured, int]:
    """Measures a load, and measures it again for longer if it has too few answers. Returns its
    duration in seconds, too.
    """
    encoded = scene.encoded(contender)
    result = load.measured(contender, encoded, clients, seconds)
    longer_s = seconds if scene.plan.quick else load.extended_s(result, seconds)
    if longer_s > seconds:
        progress(f"{contender.name}: {result.found.answered} answers, again for {longer_s} s")
        result = load.measured(contender, encoded, clients, longer_s)
    return result, longer_s


def _add_ratios(scene: Scene, names: Sequence[str], clients: Sequence[int]) -> None:
    """Adds the ratios of Stoker to each peer and to the limit, round by round."""
    report, aims = scene.report, scene.workload.aims
    rates = {series.label: series.values for series in report.series if series.unit == "req/s"}
    limits = zip(*(rates[f"in-process, batch {batch}"] for batch in LIMIT_BATCHES), strict=True)
    best = [max(pair) for pair in limits]
    inexact = {item.label.partition(":")[0] for item in report.series if item.verdict == "MISSED"}
    ours = [name for name in names if name.startswith(OURS)]
    for count in clients:
        suffix = f", {clients_of(count)}"
        theirs = {name: rates[name + suffix] for name in names if name not in ours}
        for mine in ours:
            for name, other_rates in (theirs | {LIMIT: best}).items():
                ratio = f"{mine} / {name}"
                _add_ratio(report, ratio + suffix, rates[mine + suffix], other_rates, aims)
        if theirs:
            # Selected by the median. In a noisy round, the fastest would be the luckiest.
            exact = (rates[item + suffix] for item in ours if item not in inexact)
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
    for value, other in zip(mine, others, strict=False):
        report.add(
            label,
            "x",
            value / other,
            aim=f"≥ {aim:g}" if aim else "",
            meets=at_least(aim) if aim else None,
        )
