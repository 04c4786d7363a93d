"""Added latency: what gateway, transport and queues add to the in-process call, one client."""

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.client import Connection
from bench.common import Report, at_most, cores, percentile, scratch
from bench.inprocess import InProcess, in_process
from bench.models import bert_base, minilm, texts
from bench.service import Service, request_body, serving
from stoker.tasks.registry import TASKS

AIM_MS = 2.0
CASE_S = 45
"""Time for a model; a machine that is too slow for all texts gets fewer, never other ones."""
PAUSE_S = 0.02
"""Between turns: the OpenMP threads of the side that was measured spin on for a while."""


@dataclass(frozen=True)
class Case:
    name: str
    pipeline: str
    folder: Path
    requests: int
    """Requests a round."""
    block: int
    """Requests in a row before the other side has its turn."""


def run(rounds: int) -> Report:
    report = Report("overhead", "HTTP minus the same stages and engine in-process, one client")
    cases = [
        Case("MiniLM", "feature-extraction", minilm(), 200, 10),
        Case("BERT-base", "token-classification", bert_base(), 60, 5),
    ]
    with scratch() as place, serving(place) as service:
        for number, case in enumerate(cases, start=1):
            deployment = service.deploy(case.folder, case.name, case.pipeline, "hot")
            service.wait_status(deployment, "ready")
            service.wait_calibrated("torch", number)
            _measure(report, service, case, rounds)
            service.change(deployment, "stop", "stopped")
    report.notes = [
        "One kept connection, 5 (BERT-base) or 10 requests in a row before the other side has its "
        f"turn, the same texts on both sides; engine threads: {cores()}.",
        "Added, paired: the median over the texts of HTTP minus in-process of the same text.",
    ]
    return report


def _measure(report: Report, service: Service, case: Case, rounds: int) -> None:
    inputs = texts(case.requests)
    with (
        in_process(case.pipeline, case.folder, cores()) as child,
        service.connect(TASKS[case.pipeline].path) as connection,
    ):
        inputs = _warmed_up(case, connection, child, inputs, rounds)
        for _ in range(rounds):
            _round(report, case, connection, child, inputs)


def _warmed_up(
    case: Case,
    connection: Connection,
    child: InProcess,
    inputs: Sequence[str],
    rounds: int,
) -> Sequence[str]:
    """As many of the texts as there is time for, after both sides have had each of them once.

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
        f"{case.name}, added, paired", "ms", statistics.median(one - two for one, two in pairs)
    )
    report.add(
        f"{case.name}, HTTP / in-process, p50",
        "x",
        percentile(http, 0.5) / percentile(direct, 0.5),
    )


def _over_http(connection: Connection, case: Case, inputs: Sequence[str]) -> list[float]:
    """Milliseconds of each request."""
    found: list[float] = []
    connection.renew()
    for text in inputs:
        body = request_body(case.name, text)
        started = time.perf_counter()
        connection.post(body)
        found.append((time.perf_counter() - started) * 1e3)
    return found


def _bodies(inputs: Sequence[str]) -> list[dict[str, str]]:
    return [{"inputs": text} for text in inputs]
