"""The calls of one deployment that wait or are worked on: bounded, counted, told of."""

import asyncio
from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field

from stoker.errors import InternalError, RateLimitError, StokerError
from stoker.runtime.interface import CANCELLED, OK, DeploymentSpec, RuntimeListener, Served
from stoker.runtime.local.replica import Told

RATED = 64
"""The service rate is that of so many answers."""


@dataclass(eq=False)
class Record:
    """Of one call, for those who listen."""

    begun: float
    given: float | None = None
    """When it had a replica that was ready."""
    outcome: str = OK
    told: Told = field(default_factory=Told)

    def served(self, spec: DeploymentSpec, now: float) -> Served:
        given = now if self.given is None else self.given
        return Served(
            account_id=spec.account_id,
            deployment_id=spec.id,
            model=spec.model,
            outcome=self.outcome,
            waited_s=given - self.begun,
            seconds=now - given,
            counts=self.told.counts,
            times=self.told.times,
        )


class CallQueue:
    def __init__(self, listener: RuntimeListener, clock: Callable[[], float]) -> None:
        self._listener = listener
        self._clock = clock
        self._calls = 0
        self._answered_at: deque[float] = deque(maxlen=RATED)

    def __len__(self) -> int:
        return self._calls

    @contextmanager
    def place(self, spec: DeploymentSpec) -> Generator[Record]:
        """Hold a place for one call. Raises `RateLimitError` where there is none."""
        if self._calls >= spec.max_queue:
            raise RateLimitError(
                f"This deployment's queue is full: {spec.max_queue} requests are waiting or "
                "running. Try again in a moment.",
                code="queue_full",
                retry_after_s=self._takes_s(),
            )
        self._calls += 1
        record = Record(begun=self._clock())
        try:
            yield record
            self._answered_at.append(self._clock())
        except StokerError as error:
            record.outcome = error.code
            raise
        except (asyncio.CancelledError, GeneratorExit):
            record.outcome = CANCELLED
            raise
        except Exception:
            record.outcome = InternalError.code
            raise
        finally:
            self._calls -= 1
            self._listener.served(record.served(spec, self._clock()))

    def _takes_s(self) -> float:
        """How long the calls that are here will take, as fast as the last ones were answered."""
        if len(self._answered_at) < 2:
            return 1.0
        return self._calls * (self._clock() - self._answered_at[0]) / len(self._answered_at)
