"""Prices and amounts in whole numbers. A price is a rational number; floats are never used."""

from stoker.runtime.metering import HOUR_MS
from stoker.store.tables.usage import Kind, Price

MICRO = 1_000_000
"""Number of micro-credits per credit."""
MONTH_HOURS = 30 * 24
GIB_HOUR = 1024 * HOUR_MS
"""A GiB-hour in MiB-milliseconds."""
PARTS = GIB_HOUR * MONTH_HOURS
"""Number of parts per micro-credit. Every price of a MiB-millisecond is a whole number of parts."""
LARGEST = 10**18
"""Maximum absolute balance of a book in micro-credits."""


def flex_rate(price: Price) -> int:
    """Returns the price of memory during background work, in micro-credits per GiB-hour."""
    return price.memory if price.flex is None else price.flex


def parts(kind: str, mib_ms: int, price: Price) -> int:
    """Returns the cost of MiB-milliseconds in parts of a micro-credit."""
    if kind == Kind.MEMORY:
        return mib_ms * price.memory * MONTH_HOURS
    if kind == Kind.FLEX:
        return mib_ms * flex_rate(price) * MONTH_HOURS
    return mib_ms * price.storage


def microcredits(kind: str, mib_ms: int, price: Price) -> int:
    """Returns the cost of MiB-milliseconds in micro-credits, rounded down."""
    return parts(kind, mib_ms, price) // PARTS


def in_credits(amount: int) -> str:
    """Formats micro-credits as credits: ``-1500000`` → ``"-1.500000"``."""
    whole, rest = divmod(abs(amount), MICRO)
    return f"{'-' if amount < 0 else ''}{whole}.{rest:06}"
