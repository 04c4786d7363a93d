"""Determines the memory for a language model's cache of keys and values."""

import psutil

CACHE_SHARE = 4
"""Divisor of the free memory: the cache of keys and values takes at most this part of it."""
MOST_CACHE_BYTES = 2 << 30
DEVICE_SHARE = 4
"""Divisor of a GPU's free memory: the cache takes at most this part of it."""


def most_cache_bytes(budget: int) -> int:
    """Returns the maximum bytes of one model's cache.

    Args:
        budget: memory of all models together, in bytes.
    """
    return min(MOST_CACHE_BYTES, budget // CACHE_SHARE)


def cache_bytes(most: int) -> int:
    """Returns the bytes of the cache under the memory that is free now, at most `most`."""
    return min(most, psutil.virtual_memory().available // CACHE_SHARE)


def device_cache_bytes(weights: int, room: int) -> int:
    """Returns the maximum bytes of a model's KV cache on a GPU.

    Args:
        weights: bytes of the model's weights. Larger models have larger keys and values.
        room: bytes of the GPU that the cache shares with everything else.
    """
    return min(max(MOST_CACHE_BYTES, weights), room // DEVICE_SHARE)
