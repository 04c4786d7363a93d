"""Admission queue of one deployment: limits and counts its queued and running calls, and reports
their outcomes.
"""

import asyncio
import math
from collections.abc import Callable
from contextvars import copy_context
from dataclasses import dataclass, field
from types import TracebackType

from stoker.base.errors import InferenceTimeoutError, InternalError, RateLimitError, StokerError
from stoker.base.fairness import CURRENT_CALLER, Party
from stoker.runtime.listening import CANCELLED, CANCELLED_STATUS, OK, RuntimeListener, Served
from stoker.runtime.pool.answers import CallStats
from stoker.runtime.pool.demand import Demand
from stoker.runtime.pool.pace import Pace
from stoker.runtime.specification import DeploymentSpec
from stoker.wire.generation_request import AdapterName

BACKGROUND_RETRY_S = 5.0
"""Seconds after which a refused background call may be retried."""


@dataclass(eq=False)
class Record:
    """Record of one call, for the listener."""

    begun: float
    given: float | None = None
    """Time at which the call got a ready replica."""
    outcome: str = OK
    is_copy: bool = False
    status: int = 200
    adapter: AdapterName | None = None
    """Adapter with the deployment that the call is counted for, instead of the base that
    answers.
    """
    stats: CallStats = field(default_factory=CallStats)

    def mark_given(self, now: float) -> None:
        self.given = now

    def fail(self, outcome: str, status: int) -> None:
        self.outcome, self.status = outcome, status

    def served(self, spec: DeploymentSpec, now: float) -> Served:
        ready_at = now if self.given is None else self.given
        return Served(
            account_id=spec.account_id,
            deployment_id=self.adapter.deployment_id if self.adapter else spec.deployment,
            model=self.adapter.model if self.adapter else spec.model,
            outcome=self.outcome,
            status=self.status,
            waited_s=ready_at - self.begun,
            seconds=now - ready_at,
            counts=self.stats.counts,
            version_id="" if self.adapter else spec.version,
            is_copy=self.is_copy,
            times=self.stats.times,
        )


class _Lane:
    """Places of live calls or of background calls, which do not count for each other."""

    def __init__(self) -> None:
        self.calls = 0
        self._by_key: dict[str, int] = {}

    def enter(self, key: str) -> None:
        self.calls += 1
        self._by_key[key] = self._by_key.get(key, 0) + 1

    def leave(self, key: str) -> None:
        self.calls -= 1
        self._by_key[key] -= 1
        if not self._by_key[key]:
            del self._by_key[key]

    def is_full(self, key: str, most: int) -> bool:
        """Returns True if there is no place for a key. Places that one key uses beyond its share do
        not count against others, so the lane may hold up to twice its limit.
        """
        if self.calls < most:
            return False
        keys = len(self._by_key) + (key not in self._by_key)
        return self.calls >= 2 * most or self._by_key.get(key, 0) >= most // keys

    def ahead(self, key: str) -> int:
        """Returns how many calls come before the next call of a key, as keys take turns."""
        keys = len(self._by_key) + (key not in self._by_key)
        return min(self.calls, (self._by_key.get(key, 0) + 1) * keys - 1)


class CallQueue:
    def __init__(
        self,
        listener: RuntimeListener,
        clock: Callable[[], float],
        on_live: Callable[[], None] = lambda: None,
    ) -> None:
        """
        Args:
            on_live: is called when a live call arrives.
        """
        self._listener = listener
        self._clock = clock
        self._on_live = on_live
        self._last_live = -math.inf
        self._live, self._background = _Lane(), _Lane()
        self.pace = Pace(clock)
        self.demand = Demand(clock)

    def __len__(self) -> int:
        return self._live.calls + self._background.calls

    def is_quiet(self, for_s: float) -> bool:
        """Returns True if there is no live call, and none has ended within some seconds."""
        return not self._live.calls and self._clock() - self._last_live >= for_s

    def place(
        self,
        spec: DeploymentSpec,
        within_s: float | None = None,
        *,
        adapter: AdapterName | None = None,
        is_steady: bool = False,
    ) -> "QueuePlace":
        """Returns a place in the queue for one call. Raises `RateLimitError` if none is free.

        Args:
            within_s: seconds from sending the call to a replica until its whole answer. None means
                no limit.
            is_steady: the current replicas will keep answering.
        """
        party = CURRENT_CALLER.get()
        if party.tier.is_background:
            return self._background_place(spec, party, within_s, adapter)
        key, lane = party.key, self._live
        ahead = lane.ahead(key)
        if lane.is_full(key, spec.max_queue):
            raise RateLimitError(
                f"This deployment's queue is full: {spec.max_queue} requests are waiting or "
                "running. Try again in a moment.",
                code="queue_full",
                retry_after_s=self.pace.median_s(ahead - 1),
            )
        if within_s is not None and is_steady and ahead:
            self._check_deadline(ahead, within_s)
        lane.enter(key)
        self._on_live()
        self.demand.add()
        record = Record(begun=self._clock(), is_copy=party.is_copy, adapter=adapter)
        return QueuePlace(self, record, spec, party=party, ahead=ahead, within_s=within_s)

    def _background_place(
        self,
        spec: DeploymentSpec,
        party: Party,
        within_s: float | None,
        adapter: AdapterName | None,
    ) -> "QueuePlace":
        """Returns a place for a background call. Such calls are no demand for the model, and their
        durations say nothing about those of others.
        """
        lane = self._background
        if lane.is_full(party.key, spec.max_queue):
            raise RateLimitError(
                f"This deployment's queue for the service tier '{party.tier}' is full: "
                f"{spec.max_queue} requests are waiting or running. Try again later.",
                code="queue_full",
                retry_after_s=BACKGROUND_RETRY_S,
            )
        lane.enter(party.key)
        record = Record(begun=self._clock(), is_copy=party.is_copy, adapter=adapter)
        return QueuePlace(self, record, spec, party=party, ahead=0, within_s=within_s)

    def leave(self, place: "QueuePlace") -> None:
        """Gives a place back and reports the outcome of its call."""
        record, party = place.record, place.party
        if party.tier.is_background:
            self._background.leave(party.key)
            self._report(record, place.spec)
            return
        if record.outcome == OK and record.given is not None:
            seconds = self._clock() - record.given
            self.pace.answered(place.ahead, seconds, is_bounded=place.within_s is not None)
        elif record.outcome == InferenceTimeoutError.code and place.within_s is not None:
            self.pace.given_up(place.ahead, place.within_s)
        self._live.leave(party.key)
        self._last_live = self._clock()
        self._report(record, place.spec)

    def _report(self, record: Record, spec: DeploymentSpec) -> None:
        """Reports an ended call to the listener, once its replica has reported the outcome."""
        ended = self._clock()
        if not record.stats.is_pending:
            self._listener.served(record.served(spec, ended))
            return
        run = copy_context().run
        record.stats.when_complete(lambda: run(self._listener.served, record.served(spec, ended)))

    def _check_deadline(self, ahead: int, within_s: float) -> None:
        """Raises `RateLimitError` if the answer would arrive too late."""
        p10_s = self.pace.p10_s(ahead) if self.pace.max_p10_s >= within_s else None
        if p10_s is None or p10_s < within_s:
            return
        expected_s = self.pace.median_s(ahead)
        raise RateLimitError(
            f"This deployment's queue is too long. With the {ahead} requests before it, this "
            f"request would take about {expected_s:.0f} s, but its limit is {within_s:g} s. "
            "Try again later.",
            code="queue_full",
            retry_after_s=max(1.0, expected_s - within_s),
        )


class QueuePlace:
    """The place of one call in the queue. A context manager, left at the call's end.

    A class, because a generator would cost every call more.
    """

    def __init__(
        self,
        queue: CallQueue,
        record: Record,
        spec: DeploymentSpec,
        *,
        party: Party,
        ahead: int,
        within_s: float | None,
    ) -> None:
        self.record = record
        self.spec = spec
        self.party = party
        self.ahead = ahead
        self.within_s = within_s
        self._queue = queue

    def __enter__(self) -> Record:
        return self.record

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if isinstance(error, StokerError):
            self.record.fail(error.code, error.status)
        elif isinstance(error, asyncio.CancelledError | GeneratorExit):
            self.record.fail(CANCELLED, CANCELLED_STATUS)
        elif isinstance(error, Exception):
            self.record.fail(InternalError.code, InternalError.status)
        self._queue.leave(self)
