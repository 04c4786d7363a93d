"""Decides whether and when a failed request is repeated."""

import math
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from .errors import (
    MODEL_LOADING,
    ApiError,
    BrokenConnectionError,
    StokerError,
    Stopped,
    UnreachableError,
)

Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class RetryLimits:
    """Limits of the retries of one request."""

    attempts: int = 5
    total_s: float = math.inf
    """Longest time from the first attempt to the start of the last one, seconds."""
    unreachable_s: float | None = None
    """Longest time of retries while the server refuses connections, because it may be restarting.
    These retries do not count as attempts. None counts them.
    """
    first_delay_s: float = 0.5
    longest_delay_s: float = 15.0


class RetryAttempts:
    """RetryAttempts of one request. Returns the delay after each failed one."""

    def __init__(self, limits: RetryLimits, *, is_repeatable: bool) -> None:
        """Args:
        is_repeatable: True if the server may execute the request twice.
        """
        self._limits = limits
        self._is_repeatable = is_repeatable
        self._failures = 0
        self._started = time.monotonic()
        self._unreachable_since: float | None = None

    def delay_s(self, error: StokerError) -> float | None:
        """Returns the seconds until the next attempt. None if there is none."""
        delay = self._delay(error)
        if delay is None or time.monotonic() + delay - self._started > self._limits.total_s:
            return None
        return delay

    def _delay(self, error: StokerError) -> float | None:
        limits = self._limits
        if limits.attempts <= 1 or not self._may_repeat(error):
            return None
        if isinstance(error, UnreachableError) and limits.unreachable_s is not None:
            self._unreachable_since = self._unreachable_since or time.monotonic()
            is_over = time.monotonic() - self._unreachable_since > limits.unreachable_s
            return None if is_over else limits.first_delay_s
        self._unreachable_since = None
        retry_after_s = error.problem.retry_after_s if isinstance(error, ApiError) else None
        if retry_after_s is not None and _is_loading(error):
            # Only the total time limits the wait for a model.
            return retry_after_s
        self._failures += 1
        if self._failures >= limits.attempts:
            return None
        return self._backoff() if retry_after_s is None else retry_after_s

    def _may_repeat(self, error: StokerError) -> bool:
        match error:
            case UnreachableError():
                return True
            case BrokenConnectionError():
                return self._is_repeatable
            case ApiError():
                return error.is_passing if self._is_repeatable else error.is_unprocessed
            case _:
                return False

    def _backoff(self) -> float:
        limits = self._limits
        longest = min(limits.longest_delay_s, limits.first_delay_s * 2 ** (self._failures - 1))
        # Jitter, so that clients that failed together do not retry together.
        return longest * random.uniform(0.5, 1)  # noqa: S311


def _is_loading(error: StokerError) -> bool:
    return isinstance(error, ApiError) and error.code == MODEL_LOADING


@dataclass
class Retry:
    """Repeats requests that are safe to repeat, until another thread sets `stop`."""

    limits: RetryLimits = field(default_factory=lambda: RetryLimits(unreachable_s=60.0))
    stop: threading.Event = field(default_factory=threading.Event)
    on_wait: Callable[[str], None] = lambda _message: None

    def run(self, attempt: Callable[[], Result]) -> Result:
        """Returns the first successful result of `attempt`. Raises its last error otherwise."""
        attempts = RetryAttempts(self.limits, is_repeatable=True)
        while True:
            try:
                return attempt()
            except StokerError as error:
                delay = attempts.delay_s(error)
                if delay is None:
                    raise
                self.on_wait(error.message)
                if self.stop.wait(delay):
                    raise Stopped from error
