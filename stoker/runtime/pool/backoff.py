"""Records why the last start of a deployment's replica failed, and when the next one may be
tried.
"""

import math
from collections.abc import Callable

from stoker.base.errors import CapacityError, ModelLoadingError
from stoker.runtime.interface import LoadError

INITIAL_S = 10.0
MAX_S = 300.0
MAX_EARLY_ENDS = 3
"""Number of consecutive early exits after which the load counts as failed."""


class Backoff:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._pause_s = 0.0
        self._retry_at = 0.0
        self.problem: CapacityError | LoadError | None = None
        """Error of the last start. None after a success."""
        self.refusals = 0
        """Number of starts that were refused memory."""
        self._ends = 0

    @property
    def may_try(self) -> bool:
        return self._clock() >= self._retry_at

    def failed(self, problem: LoadError) -> None:
        """Records a failed load. The next start has to wait for a pause that doubles with each
        failure. After a lasting failure, no start is tried.
        """
        self._pause_s = min(MAX_S, self._pause_s * 2 or INITIAL_S)
        self._retry_at = math.inf if problem.lasting else self._clock() + self._pause_s
        self.problem = problem

    def refused(self, problem: CapacityError) -> bool:
        """Records that no memory is possible for the replica. Returns True if that is new.

        The next request may try again immediately. Starts that only keep the deployment loaded
        wait.
        """
        is_news = not isinstance(self.problem, CapacityError)
        self.refusals += 1
        self._retry_at = self._clock() + INITIAL_S
        self.problem = problem
        return is_news

    def ended_soon(self) -> bool:
        """Records the exit of a replica soon after its start. Returns True if the limit is
        reached.
        """
        self._ends += 1
        return self._ends >= MAX_EARLY_ENDS

    def loaded(self) -> None:
        """Records a successful start. The replica may still end early."""
        self._retry_at = 0.0
        self.problem = None

    def proved(self) -> None:
        """Records that a replica has kept running. The next failure counts as the first one."""
        self._pause_s, self._ends = 0.0, 0

    def reset(self) -> None:
        """Clears all failures after a change of the deployment or a user's request to retry."""
        self.loaded()
        self.proved()

    def check(self) -> None:
        """Raises `CapacityError` or `ModelLoadingError` while a failed load is not retried."""
        remaining = self._retry_at - self._clock()
        if not isinstance(self.problem, LoadError) or remaining <= 0:
            return
        if self.problem.lasting:
            raise ModelLoadingError(
                f"The model could not be loaded: {self.problem} The load is retried once the "
                "deployment is changed or started again.",
                progress=0.0,
                is_lasting=True,
            )
        again = f"The load is retried in {remaining:.0f} s."
        if self.problem.out_of_memory:
            raise CapacityError(
                f"The model ran out of memory: {self.problem} {again}",
                code="insufficient_memory",
                retry_after_s=remaining,
            )
        raise ModelLoadingError(
            f"The model could not be loaded: {self.problem} {again}",
            retry_after_s=remaining,
            progress=0.0,
        )

    def check_refusals(self, before: int) -> None:
        """Raises the `CapacityError` of a refused start if `refusals` has grown beyond `before`."""
        if self.refusals > before and isinstance(self.problem, CapacityError):
            raise self.problem
