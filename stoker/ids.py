"""Object ids: a type prefix and a time-ordered random part."""

import secrets
import time
from enum import StrEnum

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford's base 32


class Prefix(StrEnum):
    ACCOUNT = "acct"
    KEY = "key"
    ARTIFACT = "art"
    UPLOAD = "upl"
    DEPLOYMENT = "dep"
    REPLICA = "rep"
    EVENT = "evt"
    REQUEST = "req"


def new_id(prefix: Prefix) -> str:
    """An id such as ``art_01k9…``: 48 bits of unix milliseconds, then 80 random bits (ULID)."""
    number = (time.time_ns() // 1_000_000) << 80 | secrets.randbits(80)
    digits = [_ALPHABET[number >> shift & 31] for shift in range(125, -1, -5)]
    return f"{prefix}_{''.join(digits)}"
