"""Failed sign-in attempts. After several failures an address must wait before its next attempt."""

import ipaddress
import time
from collections.abc import Callable
from dataclasses import dataclass

from stoker.base.errors import RateLimitError

FREE = 5
"""Number of consecutive failed attempts without a wait."""
FIRST_S, LONGEST_S = 1.0, 60.0
"""First and longest wait in seconds. The wait doubles with each further failure."""
FORGOTTEN_S = 15 * 60.0
_KEPT = 10_000
_V6_NETWORK = 64


@dataclass
class _Failures:
    count: int
    at: float

    def wait_s(self, now: float) -> float:
        """Returns the seconds until the next attempt is accepted."""
        beyond = self.count - FREE
        if beyond < 0:
            return 0.0
        return min(LONGEST_S, FIRST_S * 2.0 ** min(beyond, 16)) - (now - self.at)


class Attempts:
    """Failed sign-in attempts per address, in the memory of this process. An address without recent
    failures is forgotten.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failures: dict[str, _Failures] = {}

    def check(self, address: str) -> None:
        """Raises `RateLimitError` if an address must wait."""
        failures = self._failures.get(_network(address))
        now = self._clock()
        if failures and now - failures.at < FORGOTTEN_S and (wait_s := failures.wait_s(now)) > 0:
            raise RateLimitError(
                f"Too many attempts to sign in have failed. Try again in {max(1, round(wait_s))} "
                "s.",
                retry_after_s=wait_s,
            )

    def failed(self, address: str) -> None:
        network, now = _network(address), self._clock()
        failures = self._failures.pop(network, None)
        count = failures.count if failures and now - failures.at < FORGOTTEN_S else 0
        if len(self._failures) >= _KEPT:
            # Drops the address with the oldest last failure: the insertion order is the order of
            # last failures.
            del self._failures[next(iter(self._failures))]
        self._failures[network] = _Failures(count + 1, now)

    def succeeded(self, address: str) -> None:
        self._failures.pop(_network(address), None)


def _network(address: str) -> str:
    """Returns the network of an address. For IPv6 this is the /64, because one client may own all
    of its addresses.
    """
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return address[:64]
    if ip.version == 4:
        return str(ip)
    return str(ipaddress.ip_network((ip, _V6_NETWORK), strict=False))
