"""Why the last start of a deployment's replica failed, and when the next one may be tried."""

import math
from collections.abc import Callable

from stoker.base.errors import CapacityError, ModelLoadingError
from stoker.runtime.interface import LoadError

INITIAL_S = 10.0
MAX_S = 300.0
MAX_EARLY_ENDS = 3
"""Replicas in a row that end soon after their start; with so many, the load is what fails."""


class Backoff:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._pause_s = 0.0
        self._retry_at = 0.0
        self.problem: CapacityError | LoadError | None = None
        """What ended the last start; none once one has succeeded."""
        self.refusals = 0
        """Starts that were refused memory."""
        self._ends = 0

    @property
    def may_try(self) -> bool:
        return self._clock() >= self._retry_at

    def failed(self, problem: LoadError) -> None:
        """The next start may be tried after a pause that doubles from failure to failure, or not
        at all where that would change nothing.
        """
        self._pause_s = min(MAX_S, self._pause_s * 2 or INITIAL_S)
        self._retry_at = math.inf if problem.lasting else self._clock() + self._pause_s
        self.problem = problem

    def refused(self, problem: CapacityError) -> bool:
        """There can be no memory for it. Returns whether that is news.

        The next request may ask anew at once; what is only kept loaded is in no hurry.
        """
        is_news = not isinstance(self.problem, CapacityError)
        self.refusals += 1
        self._retry_at = self._clock() + INITIAL_S
        self.problem = problem
        return is_news

    def ended_soon(self) -> bool:
        """A replica has ended soon after its start. Returns whether that is once too often."""
        self._ends += 1
        return self._ends >= MAX_EARLY_ENDS

    def loaded(self) -> None:
        """A start has succeeded. Whether its replica stays is another matter."""
        self._retry_at = 0.0
        self.problem = None

    def proved(self) -> None:
        """A replica has stayed: the next failure is the first one again."""
        self._pause_s, self._ends = 0.0, 0

    def reset(self) -> None:
        """The deployment was changed, or somebody wants it tried anew."""
        self.loaded()
        self.proved()

    def check(self) -> None:
        """Raises `CapacityError` or `ModelLoadingError` while a failed load is not tried again."""
        remaining = self._retry_at - self._clock()
        if not isinstance(self.problem, LoadError) or remaining <= 0:
            return
        if self.problem.lasting:
            raise ModelLoadingError(
                f"The model could not be loaded: {self.problem} It is tried again once the "
                "deployment is changed or started anew.",
                progress=0.0,
                is_lasting=True,
            )
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
