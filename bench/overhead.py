"""Added latency of gateway, transport and queues, compared with the in-process call, one client."""

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.client import Connection
from bench.common import Plan, Report, at_most, cores, percentile, scratch
from bench.inprocess import InProcess, in_process
from bench.models import bert_base, minilm
from bench.samples import texts
from bench.service import request_body, serving
from stoker.models.tasks.registry import TASKS

AIM_MS = 2.0
CASE_S = 45
"""Seconds per model. A machine that is too slow for all texts uses fewer of them, never others."""
PAUSE_S = 0.02
"""Pause in seconds between turns, because OpenMP threads of the measured side spin for a while."""


@dataclass(frozen=True)
class Case:
    name: str
    pipeline: str
    folder: Path
    requests: int
    """Requests per round."""
    block: int
    """Number of consecutive requests before the other side's turn."""


def run(plan: Plan) -> Report:
    report = Report("overhead", "HTTP minus the same stages and engine in-process, one client")
    cases = [
        Case("MiniLM", "feature-extraction", minilm(), plan.sized(200, 10), 10),
        Case("BERT-base", "token-classification", bert_base(), plan.sized(60, 10), 5),
    ]
    with scratch() as place, serving(report, place) as service:
        for case in cases:
            deployment = service.deploy(case.folder, case.name, case.pipeline, readiness="hot")
            path = TASKS[case.pipeline].path
            bodies = [request_body(case.name, text) for text in texts(case.requests)]
            # Otherwise it would be converted during the measurement. The loop runs the same model.
            converted = service.settle(deployment, path, bodies)
            side = f"in-process, {case.name}"
            arguments = (case.pipeline, case.folder, place, converted, side)
            with (
                # Turns last only milliseconds, so a suspended child would first have to wake.
                in_process(report, *arguments, is_suspended=False) as child,
                service.connect(path) as connection,
            ):
                _measure(report, connection, child, case, plan.rounds)
            service.change(deployment, "stop", "stopped")
    report.notes += [
        "One kept connection, 5 (BERT-base) or 10 requests in a row before the other side has its "
        f"turn, the same texts on both sides; engine threads: {cores()}.",
        "Added, paired: the median over the texts of HTTP minus in-process of the same text.",
    ]
    return report


def _measure(
    report: Report, connection: Connection, child: InProcess, case: Case, rounds: int
) -> None:
    inputs = _warmed_up(case, connection, child, texts(case.requests), rounds)
    for _ in range(rounds):
        _round(report, case, connection, child, inputs)


def _warmed_up(
    case: Case,
    connection: Connection,
    child: InProcess,
    inputs: Sequence[str],
    rounds: int,
) -> Sequence[str]:
    """Sends each text to both sides once. Returns the texts that fit into the time.

    The first pass of every shape builds its kernels.
    """
    started = time.monotonic()
    done = 0
    while done < len(inputs) and time.monotonic() - started < CASE_S / (rounds + 1):
        block = inputs[done : done + case.block]
        child.run(_bodies(block))
        _over_http(connection, case, block)
        done += len(block)
    return inputs[:done]


def _round(
    report: Report, case: Case, connection: Connection, child: InProcess, inputs: Sequence[str]
) -> None:
    http: list[float] = []
    direct: list[float] = []
    for start in range(0, len(inputs), case.block):
        block = inputs[start : start + case.block]
        with report.client.asking(case.name):
            http += _over_http(connection, case, block)
        time.sleep(PAUSE_S)
        direct += [seconds * 1e3 for seconds in child.run(_bodies(block))]
        time.sleep(PAUSE_S)
    for share in (0.5, 0.99):
        name = f"p{share * 100:.0f}"
        report.add(f"{case.name}, HTTP, {name}", "ms", percentile(http, share))
        report.add(f"{case.name}, in-process, {name}", "ms", percentile(direct, share))
    report.add(
        f"{case.name}, added p50",
        "ms",
        percentile(http, 0.5) - percentile(direct, 0.5),
        aim=f"≤ {AIM_MS:g} ms",
        meets=at_most(AIM_MS),
    )
    pairs = zip(http, direct, strict=True)
    report.add(
        f"{case.name}, added, paired", "ms", statistics.median(first - two for first, two in pairs)
    )
    report.add(
        f"{case.name}, HTTP / in-process, p50",
        "x",
        percentile(http, 0.5) / percentile(direct, 0.5),
    )


def _over_http(connection: Connection, case: Case, inputs: Sequence[str]) -> list[float]:
    """Returns the milliseconds of each request."""
    milliseconds: list[float] = []
    connection.renew()
    for text in inputs:
        body = request_body(case.name, text)
        started = time.perf_counter()
        connection.post(body)
        milliseconds.append((time.perf_counter() - started) * 1e3)
    return milliseconds


def _bodies(inputs: Sequence[str]) -> list[dict[str, str]]:
    return [{"inputs": text} for text in inputs]
