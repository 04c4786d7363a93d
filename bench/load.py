"""Closed loops of clients that each send one small request after the other, with wrk."""

import contextlib
import json
import math
import statistics
import threading
import time
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import psutil

from bench import wrk
from bench.client import Connection, HttpError
from bench.common import Report, clients_of
from bench.processes import awake, cpu_seconds, cpu_seconds_by_part, tree

SAMPLE_S = 0.5
ALONE = 5
TURNS = 3
LEAST_ANSWERS, MOST_S = 30, 60
"""Number of answers from which a rate is not mostly chance, and the most seconds that a load is
extended to for them.
"""
MARGIN = 1.2
"""An extended load lasts this many times as long as `LEAST_ANSWERS` took in the first load."""


@dataclass(frozen=True)
class Contender:
    """A running server and its request format."""

    name: str
    pid: int
    base_url: str
    path: str
    body: Mapping[str, Any]
    """Fields of every request, in addition to its input."""
    key: str = ""
    is_suspended: bool = field(default=True, kw_only=True)
    """True if the server is suspended except during its measurement. False for Stoker, which always
    answers its own health checks.
    """

    def encoded(self, bodies: Sequence[Mapping[str, Any]]) -> list[bytes]:
        """Encodes these requests as the server expects them."""
        return [json.dumps({**body, **self.body}).encode() for body in bodies]

    def connect(self) -> Connection:
        return Connection(self.base_url, self.path, self.key)

    @contextlib.contextmanager
    def awake(self) -> Generator[None]:
        with awake(self.pid) if self.is_suspended else contextlib.nullcontext():
            yield


@dataclass(frozen=True)
class Measured:
    found: wrk.Found
    cpu_seconds: float
    """Processor time in seconds of the server and its children."""
    peak_bytes: int
    cpu_by_part: Mapping[str, float]
    """Processor time of Stoker in seconds, by part."""

    @property
    def rate(self) -> float:
        return self.found.answered / self.found.seconds


def alone_s(contender: Contender, bodies: Sequence[bytes]) -> float:
    """Returns the median seconds of a single client's request. Raises `RuntimeError` if a request
    is rejected.
    """
    seconds: list[float] = []
    with contender.awake(), contender.connect() as connection:
        for body in bodies[:ALONE]:
            began = time.perf_counter()
            try:
                connection.post(body)
            except HttpError as error:
                raise RuntimeError(f"{contender.name} refused: {error}") from error
            seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


def enough_s(seconds: int, clients: int, alone_s: float) -> int:
    """Returns the seconds of a load, long enough for several turns of all clients. `alone_s` is the
    duration of a single request.
    """
    return max(seconds, math.ceil(TURNS * clients * alone_s))


def extended_s(measured: Measured, seconds: int) -> int:
    """Returns the seconds of a load with enough answers for a rate. Returns `seconds`, the duration
    of the measured load, if that is enough.
    """
    if measured.found.answered >= LEAST_ANSWERS:
        return seconds
    return max(seconds, min(MOST_S, math.ceil(MARGIN * LEAST_ANSWERS / measured.rate)))


def measured(contender: Contender, bodies: Sequence[bytes], clients: int, seconds: int) -> Measured:
    """Measures a load. Raises `RuntimeError` if no request succeeds."""
    is_ours = not contender.is_suspended
    with contender.awake(), _Watch(contender.pid) as watch:
        before = cpu_seconds_by_part(contender.pid) if is_ours else Counter[str]()
        url = contender.base_url + contender.path
        result = wrk.run(url, contender.key, bodies, clients, seconds)
        if is_ours:
            before.subtract(cpu_seconds_by_part(contender.pid))
    if not result.answered:
        why = result.failure or f"there was no answer within {seconds} s"
        raise RuntimeError(f"{contender.name} answered nothing: {why}")
    parts = {name: -spent for name, spent in before.items()}
    return Measured(result, watch.cpu_seconds, watch.peak_bytes, parts)


def add(report: Report, name: str, clients: int, measured: Measured) -> None:
    label, result = f"{name}, {clients_of(clients)}", measured.found
    report.add(label, "req/s", measured.rate)
    report.add(f"{label}, p50", "ms", result.p50_ms)
    report.add(f"{label}, p99", "ms", result.p99_ms)
    report.add(f"{label}, errors", "", result.failed)
    report.add(f"{label}, CPU a request", "ms", measured.cpu_seconds / result.answered * 1e3)
    for part, spent in measured.cpu_by_part.items():
        report.add(f"{label}, CPU a request: {part}", "ms", spent / result.answered * 1e3)
    report.add(f"{label}, peak memory", "MiB", measured.peak_bytes / 2**20)
    report.client.add(label, result.cpu_seconds, result.seconds)
    if result.failed:
        report.notes.append(f"{label}: {result.failure or 'a connection failed'}")


class _Watch:
    """Measures the CPU time and memory of a process tree during a load."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample)
        self.cpu_seconds = 0.0
        self.peak_bytes = 0

    def __enter__(self) -> "_Watch":
        self._before = cpu_seconds(self._pid)
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._ended.set()
        self._thread.join()
        self.cpu_seconds = cpu_seconds(self._pid) - self._before

    def _sample(self) -> None:
        while True:
            used = 0
            for process in tree(self._pid):
                with contextlib.suppress(psutil.NoSuchProcess):
                    used += process.memory_info().rss
            self.peak_bytes = max(self.peak_bytes, used)
            if self._ended.wait(SAMPLE_S):
                return
