"""Why the last start of a deployment's replica failed, and when the next one may be tried."""

from collections.abc import Callable

from stoker.errors import CapacityError, ModelLoadingError
from stoker.runtime.local.replica import LoadError

FIRST_S = 10.0
LAST_S = 300.0


class Backoff:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._pause_s = 0.0
        self._retry_at = 0.0
        self.problem: CapacityError | LoadError | None = None
        """What ended the last start; none once one has succeeded."""
        self.refusals = 0
        """Starts that were refused memory."""

    @property
    def may_try(self) -> bool:
        return self._clock() >= self._retry_at

    def failed(self, problem: LoadError) -> None:
        """The next start may be tried after a pause that doubles from failure to failure."""
        self._pause_s = min(LAST_S, self._pause_s * 2 or FIRST_S)
        self._retry_at = self._clock() + self._pause_s
        self.problem = problem

    def refused(self, problem: CapacityError) -> bool:
        """There can be no memory for it. Returns whether that is news.

        The next request may ask anew at once; what is only kept loaded is in no hurry.
        """
        is_news = not isinstance(self.problem, CapacityError)
        self.refusals += 1
        self._retry_at = self._clock() + FIRST_S
        self.problem = problem
        return is_news

    def forget(self) -> None:
        self._pause_s = self._retry_at = 0.0
        self.problem = None

    def check(self) -> None:
        """Raises `CapacityError` or `ModelLoadingError` while a failed load is not tried again."""
        remaining = self._retry_at - self._clock()
        if not isinstance(self.problem, LoadError) or remaining <= 0:
            return
        again = f"It is tried again in {remaining:.0f} s."
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
        """Raises the `CapacityError` of a start that was refused since there were so many."""
        if self.refusals > before and isinstance(self.problem, CapacityError):
            raise self.problem
