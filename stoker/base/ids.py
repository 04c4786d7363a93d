"""Object ids: a type prefix and a time-ordered random part."""

import os
import time
from enum import StrEnum

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford's base 32
_PAIRS = [first + second for first in _ALPHABET for second in _ALPHABET]
"""All pairs of digits, by their value."""


class Prefix(StrEnum):
    ACCOUNT = "acct"
    KEY = "key"
    ARTIFACT = "art"
    UPLOAD = "upl"
    IMPORT = "imp"
    DEPLOYMENT = "dep"
    VERSION = "ver"
    COMPARISON = "cmp"
    REPLICA = "rep"
    WORKER = "work"
    VIDEO = "video"
    BATCH = "batch"
    BATCH_PART = "bpart"
    BATCH_REQUEST = "batch_req"
    TRIAL = "trial"
    AGENT = "agent"
    RUN = "run"
    FILE = "file"
    FILE_UPLOAD = "upload"
    FILE_PART = "part"
    EVENT = "evt"
    USAGE = "use"
    PRICE = "price"
    TRANSFER = "tfr"
    REQUEST = "req"
    SERVER = "srv"
    NODE = "node"


def is_a(prefix: Prefix, identifier: str) -> bool:
    """True if an id has this type's prefix."""
    return identifier.startswith(f"{prefix}_")


def made_at(identifier: str) -> float | None:
    """Returns the creation time of an id in unix seconds, or None if it is not a valid id."""
    digits = identifier.rpartition("_")[2]
    if len(digits) != 26 or not set(digits) <= set(_ALPHABET):
        return None
    number = 0
    for digit in digits:
        number = number << 5 | _ALPHABET.index(digit)
    return (number >> 80) / 1000


def new_id(prefix: Prefix) -> str:
    """Returns a new id such as ``art_01k9…``: 48 bits of unix milliseconds, then 80 random bits
    (ULID).
    """
    number = (time.time_ns() // 1_000_000) << 80 | int.from_bytes(os.urandom(10), "big")
    digits = [_PAIRS[number >> shift & 1023] for shift in range(120, -1, -10)]
    return f"{prefix}_{''.join(digits)}"
