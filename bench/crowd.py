"""Fifty chat models in a quarter of the peer's memory: success, latency and hits of requests."""

import json
import random
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench import dtypes
from bench.chat_models import small_llamas
from bench.client import Connection, HttpError
from bench.common import Plan, Report, at_least, at_most, percentile, progress, scratch
from bench.peers.environments import NotMadeError
from bench.peers.servers import TRANSFORMERS_SERVE, Running, started, transformers_serve_any
from bench.processes import PeakMemory, awake
from bench.service import Service, serving

OURS = "ours"
PIPELINE = "text-generation"
CLIENTS = 4
AIM = 1.2
SHARE = 4
"""The peer's peak memory is this many times the memory budget of ours."""
EARLIER_MIB = 675
"""Memory budget without the peer: a quarter of its peak in an earlier measurement, 2.7 GiB."""
PEER_S = 120
"""Maximum seconds of a peer's run. Requests not answered by then are not counted."""
TOKENS = 8
SKEW = 1.0
"""Exponent s of Zipf's law: the model of rank r is requested in proportion to r to the power of
-s.
"""
PATH = "/v1/chat/completions"
TRIAL = (0, 1, 0, 2, 0, 3) * 2
"""Ranks of the models that are requested from a peer in each dtype. The peer must also load
them.
"""


@dataclass(frozen=True)
class Size:
    models: int
    requests: int


FULL, QUICK = Size(50, 150), Size(6, 12)


@dataclass
class Asked:
    """Result of one run."""

    seconds: list[float] = field(default_factory=list[float])
    failures: Counter[str] = field(default_factory=Counter[str])
    took: float = 0.0
    client_cpu_s: float = 0.0

    @property
    def rate(self) -> float:
        return len(self.seconds) / self.took


@dataclass
class PeerRounds:
    rates: list[float | None] = field(default_factory=list[float | None])
    """Requests a second of each round. None if the peer answered nothing."""
    peak_mib: float = 0.0
    """Greatest proportional set size of all rounds. 0 if the peer was not measured."""


def run(plan: Plan) -> Report:
    size = plan.sized(FULL, QUICK)
    report = Report(
        "crowd", f"{size.models} chat models in a quarter of the peer's memory, by Zipf's law"
    )
    folders = small_llamas(size.models)
    with scratch() as place:
        own_dtype = dtypes.of_ours(folders[0])
        names = [str(folder) for folder in folders]
        dtype = _best(report, place, names)
        # The peer is measured first, because its memory determines the budget. It has ended before
        # Stoker is measured.
        theirs = _of_peer(report, place, size, names, dtype, plan.rounds)
        # Few models need so little that a quarter of the peer's memory would not hold one of ours.
        peak_mib = plan.sized(theirs.peak_mib, 0.0)
        budget = budget_mib(peak_mib)
        wishes: dict[str, dict[str, Any]] = {OURS: {}}
        if dtype not in ("", own_dtype):
            wishes[f"{OURS}, {dtype}"] = {"dtype": dtype}
        for side, wish in wishes.items():
            _ours(report, place, size, folders, plan.rounds, side, budget, **wish)
    _add_ratios(report, list(wishes), theirs)
    report.notes += [
        f"{CLIENTS} clients in closed loops, {size.requests} requests a round, {TOKENS} tokens "
        "each.",
        "A hit: the model was loaded when the request arrived. The peer keeps all models that it "
        f"has loaded. Its rounds end after {PEER_S} s.",
        budget_note(budget, peak_mib),
        "Peak memory: the proportional set sizes of all processes of a side together, every two "
        "seconds. That of ours includes the gateway and the engine host, the budget does not.",
    ]
    return report


def budget_mib(peer_peak_mib: float) -> int:
    """Returns the memory budget of ours: a quarter of the peer's peak, or of an earlier one."""
    return int(peer_peak_mib / SHARE) or EARLIER_MIB


def budget_note(budget: int, peer_peak_mib: float) -> str:
    if peer_peak_mib:
        return (
            f"The replicas of ours have {budget} MiB: a quarter of the peak memory of "
            f"{TRANSFORMERS_SERVE} in these rounds, {peer_peak_mib:.0f} MiB."
        )
    return (
        f"The replicas of ours have {budget} MiB: a quarter of the peak memory of "
        f"{TRANSFORMERS_SERVE} in an earlier measurement."
    )


def _best(report: Report, place: Path, names: Sequence[str]) -> str:
    """Returns the peer's fastest dtype. Empty if the peer is not available."""

    def rate(dtype: str) -> float:
        with started(report, transformers_serve_any(dtype), place) as peer, awake(peer.pid):
            result = _asked(peer.base_url, "", names, TRIAL, PEER_S)
            if result.failures:
                raise RuntimeError(str(result.failures))
            return result.rate

    try:
        transformers_serve_any(dtypes.FLOAT32)
        return dtypes.best(report, TRANSFORMERS_SERVE, "requests a second", rate)
    except (NotMadeError, RuntimeError) as error:
        report.left_out(TRANSFORMERS_SERVE, error)
        return ""


def _ours(
    report: Report,
    place: Path,
    size: Size,
    folders: Sequence[Path],
    rounds: int,
    side: str,
    budget: int,
    **wish: Any,
) -> None:
    need = _need(report, place / f"{side}-one", folders[0], f"{side}, one model alone", wish)
    report.add(f"{side}, memory that one model needs", "MiB", need)
    with serving(report, place / side, side=side, memory_budget_mib=budget) as service:
        report.settings[side]["dtype"] = wish.get("dtype") or dtypes.of_ours(folders[0])
        deployments = [service.deploy(folder, folder.name, PIPELINE, **wish) for folder in folders]
        for at in range(rounds):
            ranks = _ranks(size, at)
            _round(
                report,
                service,
                side,
                deployments,
                [model_folder.name for model_folder in folders],
                ranks,
            )


def _need(report: Report, place: Path, folder: Path, side: str, wish: dict[str, Any]) -> float:
    """Returns the measured memory of one replica in MiB."""
    with serving(report, place, side=side) as service:
        deployment = service.deploy(folder, folder.name, PIPELINE, **wish)
        result = _asked(service.base_url, service.key, [folder.name], [0] * 4, 60)
        if result.failures:
            raise RuntimeError(f"the model does not answer: {result.failures}")
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            state = service.found(deployment)
            if state["memory"]["is_measured"]:
                return state["memory"]["bytes"] / 2**20
            time.sleep(0.1)
    raise RuntimeError("the model was not measured")


def _round(
    report: Report,
    service: Service,
    side: str,
    deployments: Sequence[str],
    names: Sequence[str],
    ranks: Sequence[int],
) -> None:
    before = _events(service, deployments)
    with PeakMemory(service.pid) as memory:
        result = _asked(service.base_url, service.key, names, ranks, 600)
    events = _events(service, deployments) - before
    answered = len(result.seconds)
    failed = sum(result.failures.values())
    report.add(f"{side}, failed requests", "", failed, aim="0", meets=at_most(0))
    report.add(f"{side}, hits", "%", 100 * (1 - events["loaded"] / max(1, answered)))
    # Each eviction has two events: for the stopped replica, and for the deployment without one.
    report.add(f"{side}, evictions", "", events["evicted"] / 2)
    _add(report, side, result, memory.peak_bytes)


def _add(report: Report, side: str, asked: Asked, peak_bytes: int) -> None:
    report.add(f"{side}, requests a second", "1/s", asked.rate)
    report.add(f"{side}, p50", "s", percentile(asked.seconds, 0.5))
    report.add(f"{side}, p99", "s", percentile(asked.seconds, 0.99))
    report.add(f"{side}, peak memory", "MiB", peak_bytes / 2**20)
    report.client.add(side, asked.client_cpu_s, asked.took)
    progress(f"{side}: {asked.rate:.2f} requests a second")
    report.notes += [f"{side}: {error}" for error in asked.failures]


def _of_peer(
    report: Report, place: Path, size: Size, names: Sequence[str], dtype: str, rounds: int
) -> PeerRounds:
    """Measures the peer in all rounds. Returns none if it is not available."""
    theirs = PeerRounds()
    if not dtype:
        return theirs
    with started(report, transformers_serve_any(dtype), place) as peer:
        for at in range(rounds):
            _theirs(report, peer, names, _ranks(size, at), theirs)
    return theirs


def _theirs(
    report: Report, peer: Running, names: Sequence[str], ranks: Sequence[int], theirs: PeerRounds
) -> None:
    with awake(peer.pid), PeakMemory(peer.pid) as memory:
        result = _asked(peer.base_url, "", names, ranks, PEER_S)
    if not result.seconds:
        report.notes.append(f"{TRANSFORMERS_SERVE} answered nothing: {result.failures}")
        theirs.rates.append(None)
        return
    theirs.rates.append(result.rate)
    theirs.peak_mib = max(theirs.peak_mib, memory.peak_bytes / 2**20)
    report.add(f"{TRANSFORMERS_SERVE}, failed requests", "", sum(result.failures.values()))
    _add(report, TRANSFORMERS_SERVE, result, memory.peak_bytes)


def _add_ratios(report: Report, sides: Sequence[str], theirs: PeerRounds) -> None:
    rates = {series.label: series.values for series in report.series}
    for side in sides:
        mine = rates[f"{side}, requests a second"]
        # There are no rates without the peer.
        for rate, their_rate in zip(mine, theirs.rates, strict=False):
            if their_rate:
                report.add(
                    f"{side} / {TRANSFORMERS_SERVE}, requests a second",
                    "x",
                    rate / their_rate,
                    aim=f"≥ {AIM:g}",
                    meets=at_least(AIM),
                )


def _ranks(size: Size, at: int) -> list[int]:
    rng = random.Random(at)
    weights = [1 / (rank + 1) ** SKEW for rank in range(size.models)]
    return rng.choices(range(size.models), weights, k=size.requests)


def _asked(
    base_url: str, key: str, names: Sequence[str], ranks: Sequence[int], most_s: float
) -> Asked:
    result = Asked()
    remaining = list(reversed(ranks))
    lock = threading.Lock()
    began, used = time.perf_counter(), time.process_time()

    def client() -> None:
        with Connection(base_url, PATH, key) as connection:
            while time.perf_counter() - began < most_s:
                with lock:
                    if not remaining:
                        return
                    rank = remaining.pop()
                connection.renew()
                sent_at = time.perf_counter()
                try:
                    connection.post(_body(names[rank]))
                except HttpError as error:
                    with lock:
                        result.failures[str(error)[:80]] += 1
                    continue
                with lock:
                    result.seconds.append(time.perf_counter() - sent_at)

    threads = [threading.Thread(target=client) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    result.took = time.perf_counter() - began
    result.client_cpu_s = time.process_time() - used
    return result


def _body(model: str) -> bytes:
    message = {"role": "user", "content": "now such like our over man"}
    return json.dumps({"model": model, "messages": [message], "max_tokens": TOKENS}).encode()


def _events(service: Service, deployments: Sequence[str]) -> Counter[str]:
    """Counts the events of the deployments by reason, such as `loaded` and `evicted`."""
    reasons: Counter[str] = Counter()
    for deployment in deployments:
        after: dict[str, Any] = {}
        while True:
            path = f"/v1/deployments/{deployment}/events"
            page = service.api.get(path, params={"limit": 100, **after}).raise_for_status().json()
            reasons.update(event["reason"] for event in page["data"])
            if not page["has_more"]:
                break
            after = {"after": page["last_id"]}
    return reasons
