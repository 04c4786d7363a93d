"""Metering of the memory that workers hold over time, from the supervisor's own record of their
life cycles.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

MIB = 1024 * 1024
HOUR_MS = 3_600_000


@dataclass(frozen=True, kw_only=True)
class Holding:
    """Memory that one worker has held at one price during one hour, so far.

    The amounts grow until the hour or the worker ends. A later holding of the same hour replaces an
    earlier one, so that nothing is counted twice.
    """

    worker_id: str
    is_flex: bool
    """True for memory at the price of background work."""
    hour: int
    """Whole hours since 1970 in UTC."""
    account_id: str
    deployment_id: str
    version_id: str
    model: str
    start_ms: int
    """Milliseconds since 1970 in UTC."""
    end_ms: int
    mib_ms: int
    """MiB-milliseconds; memory is rounded up to whole MiB."""
    peak_mib: int
    is_final: bool
    """True if no further memory is added to it."""


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
    """Milliseconds of the monotonic clock. Memory before this time is already counted."""
    is_flex: bool = False
    is_over: bool = False
    is_forgotten: bool = False
    """True if its deployment was deleted. The memory that it still holds is billed, but added to no
    total.
    """
    hours: dict[tuple[int, bool], _Hour] = field(default_factory=dict[tuple[int, bool], _Hour])
    """Maps an hour and `Holding.is_flex` to the memory held."""


class Meter:
    """Sums memory times time, exactly, in whole MiB and milliseconds.

    Durations come from the monotonic clock. A jump of the wall clock only changes the hour of an
    amount, not the amount.
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
        """Starts to meter a loading worker. It counts with its expected memory until that was
        measured.
        """
        self._workers[worker_id] = _Worker(
            account_id,
            deployment_id,
            version_id,
            model,
            _mib(memory_bytes),
            self._monotonic_ms(),
        )

    def resize(self, worker_id: str, memory_bytes: int) -> None:
        """Sets the memory that a worker holds from now on."""
        worker = self._workers.get(worker_id)
        if worker and not worker.is_over and worker.mib != _mib(memory_bytes):
            self._advance(worker)
            worker.mib = _mib(memory_bytes)

    def set_flex(self, worker_id: str, *, is_flex: bool) -> None:
        """Sets whether a worker's memory costs the price of background work from now on."""
        worker = self._workers.get(worker_id)
        if worker and not worker.is_over and worker.is_flex != is_flex:
            self._advance(worker)
            worker.is_flex = is_flex

    def end(self, worker_id: str) -> None:
        """Stops metering a worker that has ended."""
        worker = self._workers.get(worker_id)
        if worker and not worker.is_over:
            self._advance(worker)
            worker.is_over = True

    def totals(self) -> Mapping[str, int]:
        """Returns the MiB-milliseconds that each deployment's workers have held since this process
        started.
        """
        for worker in self._workers.values():
            if not worker.is_over:
                self._advance(worker)
        return self._totals

    def forget(self, deployment_id: str) -> None:
        """Removes the total of a deleted deployment."""
        self._totals.pop(deployment_id, None)
        for worker in self._workers.values():
            worker.is_forgotten = worker.is_forgotten or worker.deployment_id == deployment_id

    def take(self) -> list[Holding]:
        """Returns all holdings that changed since they were acknowledged."""
        this_hour = self._wall_ms() // HOUR_MS
        holdings: list[Holding] = []
        for worker_id, worker in self._workers.items():
            if not worker.is_over:
                self._advance(worker)
            for (hour, is_flex), usage in worker.hours.items():
                is_final = worker.is_over or hour < this_hour
                if usage.acknowledged != (usage.mib_ms, is_final):
                    holdings.append(
                        Holding(
                            worker_id=worker_id,
                            is_flex=is_flex,
                            hour=hour,
                            account_id=worker.account_id,
                            deployment_id=worker.deployment_id,
                            version_id=worker.version_id,
                            model=worker.model,
                            start_ms=usage.start_ms,
                            end_ms=usage.end_ms,
                            mib_ms=usage.mib_ms,
                            peak_mib=usage.peak_mib,
                            is_final=is_final,
                        )
                    )
        return holdings

    def acknowledge(self, holdings: list[Holding]) -> None:
        """Marks holdings as stored. Workers that have ended are forgotten once all their holdings
        are stored.
        """
        for holding in holdings:
            worker = self._workers.get(holding.worker_id)
            hour = worker.hours.get((holding.hour, holding.is_flex)) if worker else None
            if worker is None or hour is None:
                continue
            hour.acknowledged = (holding.mib_ms, holding.is_final)
            if worker.is_over and all(
                usage.acknowledged == (usage.mib_ms, True) for usage in worker.hours.values()
            ):
                del self._workers[holding.worker_id]

    def _advance(self, worker: _Worker) -> None:
        """Counts the time since the last call, split at the hours of the wall clock."""
        now_ms, wall_ms = self._monotonic_ms(), self._wall_ms()
        start_ms = wall_ms - (now_ms - worker.since_ms)
        if not worker.is_forgotten:
            before = self._totals.get(worker.deployment_id, 0)
            self._totals[worker.deployment_id] = before + worker.mib * (now_ms - worker.since_ms)
        worker.since_ms = now_ms
        while True:
            hour = start_ms // HOUR_MS
            end_ms = min(wall_ms, (hour + 1) * HOUR_MS)
            usage = worker.hours.setdefault((hour, worker.is_flex), _Hour(start_ms, start_ms))
            usage.start_ms = min(usage.start_ms, start_ms)
            usage.end_ms = max(usage.end_ms, end_ms)
            usage.mib_ms += worker.mib * (end_ms - start_ms)
            usage.peak_mib = max(usage.peak_mib, worker.mib)
            if end_ms == wall_ms:
                return
            start_ms = end_ms


def _mib(memory_bytes: int) -> int:
    return -(-memory_bytes // MIB)
