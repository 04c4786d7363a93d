"""States of a replica and the legal transitions between them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from stoker.runtime.interface import LoadError
from stoker.runtime.observed import Reason, Status

_NEXT_STATUSES = {
    Status.STARTING: {Status.READY},
    Status.READY: {Status.ASLEEP, Status.STOPPING},
    Status.ASLEEP: {Status.READY},
}


class TransitionError(Exception):
    """Raised if a replica cannot change to the requested state from its current one."""


@dataclass(frozen=True)
class KillCause:
    """Why the pool kills a replica."""

    reason: Reason | None = None
    """None if no kill was recorded, or if the replica was already stopping for a known reason."""
    details: str = ""
    """Observation that led to the kill, as in `it was silent for 16 s`."""


class Lifecycle:
    """States of a replica: starting → ready → stopping → ended. It may end in each state.

    A ready replica may fall asleep, and be ready again.

    Only its methods change it. They raise `TransitionError` for any other transition.
    """

    def __init__(self, replica_id: str, clock: Callable[[], float]) -> None:
        self.id: Final = replica_id
        self._clock: Final = clock
        self._status = Status.STARTING
        self._ready_at = 0.0
        self._kill_cause = KillCause()
        self._end_error: LoadError | None = None
        """Error of a load that the replica's end interrupts. None until it ends."""

    @property
    def status(self) -> Status:
        """Starting, ready, asleep or stopping. After its end, the last status before it."""
        return self._status

    @property
    def has_ended(self) -> bool:
        return self._end_error is not None

    @property
    def ready_at(self) -> float:
        return self._ready_at

    @property
    def kill_cause(self) -> KillCause:
        return self._kill_cause

    def mark_ready(self) -> None:
        self._advance(Status.READY)
        self._ready_at = self._clock()

    def record_kill(self, reason: Reason | None, details: str = "") -> None:
        """Records why the replica is killed. Earlier details are kept if there are no new ones."""
        self._kill_cause = KillCause(reason, details or self._kill_cause.details)

    def _record_end(self, how: str, *, out_of_memory: bool, has_fallback: bool) -> LoadError:
        """Records the end of the process. Returns the error of a load that it interrupts."""
        if self._end_error:
            raise TransitionError(f"replica {self.id} has ended already")
        self._end_error = LoadError(
            f"the process ended while loading ({self._kill_cause.details or how}).",
            out_of_memory=out_of_memory,
            has_fallback=has_fallback,
            reason=self._kill_cause.reason,
        )
        return self._end_error

    def _advance(self, status: Status) -> None:
        if self.has_ended or status not in _NEXT_STATUSES.get(self._status, ()):
            state = "ended" if self.has_ended else self._status
            raise TransitionError(f"replica {self.id} is {state} and cannot be {status}")
        self._status = status
