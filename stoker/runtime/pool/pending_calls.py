"""Calls that one replica works on, and cancelled calls with an outcome that is not reported yet."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from stoker.base.fairness import Tier
from stoker.runtime.interface import OnProgress
from stoker.runtime.pool.answers import CallStats, ReplicaAnswer
from stoker.runtime.pool.work_messages import error_of
from stoker.wire.protocol import Parts, Progress, RequestFailure, RequestResult

_call_ids = itertools.count(1)


class WorkerLostError(Exception):
    """Raised if the replica ended with the call in flight. `begun` is True if it was working on the
    call.
    """

    def __init__(self, *, begun: bool, why: str = "") -> None:
        """
        Args:
            why: reason for killing the replica. Empty if it ended by itself.
        """
        super().__init__("the replica ended")
        self.begun = begun
        self.why = why


class WorkerTakenError(WorkerLostError):
    """Raised for a background call if its replica gives its memory to others."""

    def __init__(self) -> None:
        super().__init__(begun=False, why="others needed the memory of the replica")


class PendingCalls:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._answers: dict[int, ReplicaAnswer] = {}
        self._background: set[int] = set()
        """Ids of background calls."""
        self._dropped: set[int] = set()
        """Ids of calls that ended here before the replica has answered them."""
        self._cancelled: dict[int, CallStats] = {}
        self._answered = 0

    def __len__(self) -> int:
        return len(self._answers)

    @property
    def live(self) -> int:
        """Number of calls without background calls."""
        return len(self._answers) - len(self._background)

    @property
    def answers(self) -> Mapping[int, ReplicaAnswer]:
        """Maps the id of each call to its answer."""
        return MappingProxyType(self._answers)

    @property
    def answered(self) -> int:
        """Number of calls that the replica has answered, including cancelled ones."""
        return self._answered

    def begin(
        self,
        stats: CallStats,
        on_progress: OnProgress | None,
        packed_id: int | None = None,
        tier: Tier = Tier.DEFAULT,
    ) -> tuple[int, ReplicaAnswer]:
        """Returns the id and the answer of a new call. A packed call has an id already."""
        identifier = next(_call_ids) if packed_id is None else packed_id
        answer = self._answers[identifier] = ReplicaAnswer(self._clock, stats, on_progress)
        if tier.is_background:
            self._background.add(identifier)
        return identifier, answer

    def finish(self, identifier: int) -> bool:
        """Removes a call. Returns False if its answer has not ended, so that the replica has to
        cancel it.
        """
        answer = self._answers.pop(identifier)
        answer.close()
        self._background.discard(identifier)
        is_ended = answer.ended and identifier not in self._dropped
        self._dropped.discard(identifier)
        if not is_ended:
            answer.stats.expect_report()
            self._cancelled[identifier] = answer.stats
        return is_ended

    def drop_background(self) -> None:
        """Ends all background calls, so that they use another replica."""
        for identifier in self._background:
            answer = self._answers[identifier]
            if not answer.ended:
                self._dropped.add(identifier)
                answer.fail(WorkerTakenError())

    def receive(
        self, message: Parts | Progress | RequestResult | RequestFailure, frames: Sequence[bytes]
    ) -> None:
        match message:
            case Parts():
                self._share_out(message, frames[1])
            case Progress():
                self._report_progress(message)
            case RequestResult():
                self._end(message, frames[1])
            case RequestFailure():
                self._fail(message)

    def _share_out(self, parts: Parts, content: bytes) -> None:
        """Distributes the parts of several answers."""
        start, now = 0, self._clock()
        for identifier, size in zip(parts.ids, parts.sizes, strict=True):
            if answer := self._answers.get(identifier):
                answer.record_activity(now)
                answer.add(content[start : start + size])
            start += size

    def _report_progress(self, progress: Progress) -> None:
        if answer := self._answers.get(progress.id):
            answer.record_activity(self._clock())
            if answer.on_progress:
                answer.on_progress(progress.fraction)

    def _end(self, result: RequestResult, content: bytes) -> None:
        """Ends a call with its result."""
        self._answered += 1
        if answer := self._answers.get(result.id):
            answer.stats.counts.update(result.counts)
            answer.stats.times.update(result.times)
            answer.add(content)
            answer.end()
        self.end_cancelled(result.id, result.counts)

    def _fail(self, failure: RequestFailure) -> None:
        """Ends a call with its error."""
        if answer := self._answers.get(failure.id):
            answer.fail(error_of(failure))
        self.end_cancelled(failure.id)

    def lose_all(self, begun: set[int], why: str) -> None:
        """Ends all calls after the end of their replica.

        Args:
            begun: ids of the calls that the replica was working on.
        """
        for identifier, answer in list(self._answers.items()):
            answer.fail(WorkerLostError(begun=identifier in begun, why=why))
        self.end_all_cancelled()

    def end_cancelled(self, identifier: int, counts: Mapping[str, int] | None = None) -> None:
        """Completes the stats of a cancelled call."""
        if stats := self._cancelled.pop(identifier, None):
            stats.complete(counts or {})

    def end_all_cancelled(self) -> None:
        for identifier in list(self._cancelled):
            self.end_cancelled(identifier)
