"""Failed attempts to sign in: each address has to wait before its next one is answered."""

import ipaddress
import time
from collections.abc import Callable
from dataclasses import dataclass

from stoker.base.errors import RateLimitError

FREE = 5
"""Attempts that may fail in a row without a wait."""
FIRST_S, LONGEST_S = 1.0, 60.0
"""The first wait; it doubles with each further failure."""
FORGOTTEN_S = 15 * 60.0
_KEPT = 10_000
_V6_NETWORK = 64


@dataclass
class _Failures:
    count: int
    at: float

    def wait_s(self, now: float) -> float:
        """Seconds until the next attempt is heard."""
        beyond = self.count - FREE
        if beyond < 0:
            return 0.0
        return min(LONGEST_S, FIRST_S * 2.0 ** min(beyond, 16)) - (now - self.at)


class Attempts:
    """In this process' memory; an address that fails no more is forgotten."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failures: dict[str, _Failures] = {}

    def check(self, address: str) -> None:
        """Raise `RateLimitError` where an address has to wait."""
        found = self._failures.get(_network(address))
        now = self._clock()
        if found and now - found.at < FORGOTTEN_S and (wait_s := found.wait_s(now)) > 0:
            raise RateLimitError(
                f"Too many attempts to sign in have failed. Try again in {max(1, round(wait_s))} "
                "s.",
                retry_after_s=wait_s,
            )

    def failed(self, address: str) -> None:
        network, now = _network(address), self._clock()
        found = self._failures.pop(network, None)
        count = found.count if found and now - found.at < FORGOTTEN_S else 0
        if len(self._failures) >= _KEPT:
            # The one that failed longest ago: insertion is the order of last failures.
            del self._failures[next(iter(self._failures))]
        self._failures[network] = _Failures(count + 1, now)

    def succeeded(self, address: str) -> None:
        self._failures.pop(_network(address), None)


def _network(address: str) -> str:
    """Of IPv6 the /64, of which one party has all addresses."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address[:64]
    if found.version == 4:
        return str(found)
    return str(ipaddress.ip_network((found, _V6_NETWORK), strict=False))
