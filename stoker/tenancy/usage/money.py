"""Prices and amounts in whole numbers. A price is a rational; nothing here is ever a float."""

from stoker.runtime.metering import HOUR_MS
from stoker.store.tables.usage import Kind, Price

MICRO = 1_000_000
"""Micro-credits of a credit."""
MONTH_HOURS = 30 * 24
GIB_HOUR = 1024 * HOUR_MS
"""In MiB-milliseconds."""
PARTS = GIB_HOUR * MONTH_HOURS
"""Of a micro-credit: every price of a MiB-millisecond is a whole number of them."""
LARGEST = 10**18
"""Micro-credits that a book may hold, either way."""


def parts(kind: str, mib_ms: int, price: Price) -> int:
    """What MiB-milliseconds cost, in parts of a micro-credit."""
    if kind == Kind.MEMORY:
        return mib_ms * price.memory * MONTH_HOURS
    return mib_ms * price.storage


def microcredits(kind: str, mib_ms: int, price: Price) -> int:
    """What MiB-milliseconds cost, rounded down."""
    return parts(kind, mib_ms, price) // PARTS


def in_credits(amount: int) -> str:
    """Micro-credits as credits: ``-1500000`` → ``"-1.500000"``."""
    whole, rest = divmod(abs(amount), MICRO)
    return f"{'-' if amount < 0 else ''}{whole}.{rest:06}"
