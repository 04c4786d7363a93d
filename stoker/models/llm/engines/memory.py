"""How much memory a language model's cache of keys and values gets."""

import psutil

CACHE_SHARE = 4
"""The cache of keys and values takes at most this part of the memory that is free."""
MOST_CACHE_BYTES = 2 << 30


def most_cache_bytes(budget: int) -> int:
    """The most that the cache of one model takes.

    Args:
        budget: what all models together may take, bytes.
    """
    return min(MOST_CACHE_BYTES, budget // CACHE_SHARE)


def cache_bytes(most: int) -> int:
    """What it takes now, where it may take so much."""
    return min(most, psutil.virtual_memory().available // CACHE_SHARE)
