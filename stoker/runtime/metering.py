"""What workers hold of memory and for how long, from the supervisor's own record of their lives."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

MIB = 1024 * 1024
HOUR_MS = 3_600_000


@dataclass(frozen=True, kw_only=True)
class Holding:
    """The memory that one worker held during one hour, so far.

    It grows until the hour or the worker is over: taken again, it replaces what was taken before,
    and nothing is counted twice.
    """

    worker_id: str
    hour: int
    """Whole hours since 1970 in UTC."""
    account_id: str
    deployment_id: str
    version_id: str
    model: str
    start_ms: int
    """Since 1970 in UTC."""
    end_ms: int
    mib_ms: int
    """MiB-milliseconds; memory is rounded up to whole MiB."""
    peak_mib: int
    is_final: bool
    """Nothing is added to it any more."""


@dataclass(eq=False)
class _Hour:
    start_ms: int
    end_ms: int
    mib_ms: int = 0
    peak_mib: int = 0
    acknowledged: tuple[int, bool] | None = None
    """`Holding.mib_ms` and `is_final` as last acknowledged."""


@dataclass(eq=False)
class _Worker:
    account_id: str
    deployment_id: str
    version_id: str
    model: str
    mib: int
    since_ms: int
    """Of the monotonic clock: what is before is counted."""
    is_over: bool = False
    is_forgotten: bool = False
    """Its deployment is gone: what it still holds is billed, and no total of."""
    hours: dict[int, _Hour] = field(default_factory=dict[int, _Hour])


class Meter:
    """Adds up memory times time, exactly, in whole MiB and milliseconds.

    Durations come from the monotonic clock, so that a jump of the wall clock changes in which hour
    something stands and never how much it is.
    """

    def __init__(
        self,
        monotonic_ms: Callable[[], int] = lambda: time.monotonic_ns() // 1_000_000,
        wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._monotonic_ms = monotonic_ms
        self._wall_ms = wall_ms
        self._workers: dict[str, _Worker] = {}
        self._totals: dict[str, int] = {}

    def begin(
        self,
        worker_id: str,
        *,
        account_id: str,
        deployment_id: str,
        model: str,
        memory_bytes: int,
        version_id: str = "",
    ) -> None:
        """A worker begins to load; it holds what is expected of it until it was measured."""
        self._workers[worker_id] = _Worker(
            account_id,
            deployment_id,
            version_id,
            model,
            _mib(memory_bytes),
            self._monotonic_ms(),
        )

    def resize(self, worker_id: str, memory_bytes: int) -> None:
        """From now on a worker holds so much."""
        worker = self._workers.get(worker_id)
        if worker and not worker.is_over and worker.mib != _mib(memory_bytes):
            self._advance(worker)
            worker.mib = _mib(memory_bytes)

    def end(self, worker_id: str) -> None:
        """A worker's process has ended."""
        worker = self._workers.get(worker_id)
        if worker and not worker.is_over:
            self._advance(worker)
            worker.is_over = True

    def totals(self) -> Mapping[str, int]:
        """Deployment → MiB-milliseconds that its workers have held in this process' life."""
        for worker in self._workers.values():
            if not worker.is_over:
                self._advance(worker)
        return self._totals

    def forget(self, deployment_id: str) -> None:
        """A deployment was deleted: it has no total any more."""
        self._totals.pop(deployment_id, None)
        for worker in self._workers.values():
            worker.is_forgotten = worker.is_forgotten or worker.deployment_id == deployment_id

    def take(self) -> list[Holding]:
        """All that has changed since it was acknowledged."""
        this_hour = self._wall_ms() // HOUR_MS
        found: list[Holding] = []
        for worker_id, worker in self._workers.items():
            if not worker.is_over:
                self._advance(worker)
            for hour, held in worker.hours.items():
                is_final = worker.is_over or hour < this_hour
                if held.acknowledged != (held.mib_ms, is_final):
                    found.append(
                        Holding(
                            worker_id=worker_id,
                            hour=hour,
                            account_id=worker.account_id,
                            deployment_id=worker.deployment_id,
                            version_id=worker.version_id,
                            model=worker.model,
                            start_ms=held.start_ms,
                            end_ms=held.end_ms,
                            mib_ms=held.mib_ms,
                            peak_mib=held.peak_mib,
                            is_final=is_final,
                        )
                    )
        return found

    def acknowledge(self, holdings: list[Holding]) -> None:
        """They are written down; what is over can be forgotten."""
        for holding in holdings:
            worker = self._workers.get(holding.worker_id)
            hour = worker.hours.get(holding.hour) if worker else None
            if worker is None or hour is None:
                continue
            hour.acknowledged = (holding.mib_ms, holding.is_final)
            if worker.is_over and all(
                one.acknowledged == (one.mib_ms, True) for one in worker.hours.values()
            ):
                del self._workers[holding.worker_id]

    def _advance(self, worker: _Worker) -> None:
        """Count from when it was last done until now, split at the hours of the wall clock."""
        now_ms, wall_ms = self._monotonic_ms(), self._wall_ms()
        start_ms = wall_ms - (now_ms - worker.since_ms)
        if not worker.is_forgotten:
            before = self._totals.get(worker.deployment_id, 0)
            self._totals[worker.deployment_id] = before + worker.mib * (now_ms - worker.since_ms)
        worker.since_ms = now_ms
        while True:
            hour = start_ms // HOUR_MS
            end_ms = min(wall_ms, (hour + 1) * HOUR_MS)
            held = worker.hours.setdefault(hour, _Hour(start_ms, start_ms))
            held.start_ms = min(held.start_ms, start_ms)
            held.end_ms = max(held.end_ms, end_ms)
            held.mib_ms += worker.mib * (end_ms - start_ms)
            held.peak_mib = max(held.peak_mib, worker.mib)
            if end_ms == wall_ms:
                return
            start_ms = end_ms


def _mib(memory_bytes: int) -> int:
    return -(-memory_bytes // MIB)
