"""How much memory a language model's cache of keys and values gets."""

import psutil

CACHE_SHARE = 4
"""The cache of keys and values takes at most this part of the memory that is free."""
MOST_CACHE_BYTES = 2 << 30


def cache_bytes() -> int:
    return min(MOST_CACHE_BYTES, psutil.virtual_memory().available // CACHE_SHARE)
