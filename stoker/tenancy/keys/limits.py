"""Rate limits of keys per minute, counted in the memory of this process.

For several servers with one database, see `shared_limits.py`.
"""

import math
import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass

from stoker.platform.web.principal import Principal
from stoker.runtime.listening import RuntimeListener, Served

MINUTE_S = 60.0
_ROUNDING_S = 1e-6
"""Tolerance in seconds. A caller that waits for the reported time is not refused because of
rounding.
"""
_KEPT = 10_000
"""Number of remembered keys above which idle keys are forgotten."""


class TokenBucket:
    """Token bucket (RFC 3290, 5.1) with `per_minute` units that refill evenly.

    The units can be used at once or one by one. The bucket can be overdrawn, because the cost of a
    call is known only at its end.
    """

    __slots__ = ("_at", "_level", "_names", "per_minute")

    def __init__(self, what: str, per_minute: int, now: float) -> None:
        self._names = [f"x-ratelimit-{kind}-{what}" for kind in ("limit", "remaining", "reset")]
        self.per_minute = per_minute
        self._level = float(per_minute)
        self._at = now

    def level(self, now: float) -> float:
        """Returns the remaining units. Negative if the bucket is overdrawn."""
        gained = (now - self._at) * self.per_minute / MINUTE_S
        self._level = min(float(self.per_minute), self._level + gained)
        self._at = now
        return self._level

    def take(self, amount: int, now: float) -> None:
        self._level = self.level(now) - amount

    def reaches(self, level: float, now: float) -> float:
        """Returns the seconds until the bucket reaches this level again."""
        return max(0.0, (level - self.level(now)) * MINUTE_S / self.per_minute)

    def headers(self, now: float) -> dict[str, str]:
        """Returns the headers that OpenAI's API uses. `reset` is the time until the bucket is
        full.
        """
        limit, remaining, reset = self._names
        full_in_s = self.reaches(self.per_minute, now)
        return {
            limit: str(self.per_minute),
            remaining: str(max(0, math.floor(self._level))),
            reset: span(full_in_s),
        }


@dataclass(frozen=True)
class LimitVerdict:
    headers: Mapping[str, str]
    exhausted: str | None = None
    """Name of the exceeded limit. None if the request may continue."""
    retry_after_s: float = 0.0


class RateLimits(RuntimeListener):
    """Rate limits of all keys. Requests count when they arrive. Tokens count when their calls end.

    The `limits` library would count each token as a list entry, use the wall clock, and refuse to
    record usage beyond a limit.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._keys: dict[str, dict[str, TokenBucket]] = {}
        self._of_request: ContextVar[TokenBucket | None] = ContextVar("tokens_of_key", default=None)

    async def ready(self, caller: Principal) -> None:
        """Fetches the remaining units before `check` if they are shared with other servers."""

    def check(self, caller: Principal) -> LimitVerdict:
        """Counts a request if the limits allow it. The cost of its calls is counted later."""
        now = self._clock()
        buckets = self._keys.get(caller.key_id) or self._begin(caller, now)
        self._of_request.set(buckets.get("tokens"))
        for name, bucket in buckets.items():
            wait_s = bucket.reaches(1, now)
            if wait_s > _ROUNDING_S:
                return LimitVerdict(_headers(buckets, now), name, wait_s)
        if requests := buckets.get("requests"):
            requests.take(1, now)
        return LimitVerdict(_headers(buckets, now))

    def served(self, call: Served) -> None:
        # The listener runs in the context of the request that made the call.
        if bucket := self._of_request.get():
            counts = call.counts
            used = counts.get("input_tokens", 0) + counts.get("output_tokens", 0)
            bucket.take(used, self._clock())

    def _begin(self, caller: Principal, now: float) -> dict[str, TokenBucket]:
        if len(self._keys) >= _KEPT:
            self._forget_rested(now)
        buckets = self._keys[caller.key_id] = {
            name: TokenBucket(name, limit, now) for name, limit in caller.limits.items()
        }
        return buckets

    def _forget_rested(self, now: float) -> None:
        for key_id, buckets in list(self._keys.items()):
            if all(bucket.level(now) >= bucket.per_minute for bucket in buckets.values()):
                del self._keys[key_id]


def _headers(buckets: Mapping[str, TokenBucket], now: float) -> dict[str, str]:
    headers: dict[str, str] = {}
    for bucket in buckets.values():
        headers |= bucket.headers(now)
    return headers


def span(seconds: float) -> str:
    """Returns a duration in the format of OpenAI's API: `120ms`, `1.5s`, `6m0s`."""
    milliseconds = math.ceil(seconds * 1000)
    if milliseconds < 1000:
        return f"{milliseconds}ms"
    minutes, rest = divmod(milliseconds, 60_000)
    return f"{minutes}m{rest / 1000:g}s" if minutes else f"{rest / 1000:g}s"
