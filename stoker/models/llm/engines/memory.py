"""Determines the memory for a language model's cache of keys and values."""

import psutil

CACHE_SHARE = 4
"""Divisor of the free memory: the cache of keys and values takes at most this part of it."""
MOST_CACHE_BYTES = 2 << 30
DEVICE_SHARE = 4
"""Divisor of a GPU's free memory: the cache takes at most this part of it."""
WORK_BYTES, WORK_SHARE = 128 << 20, 0.05
"""Estimated memory of passes on a GPU: a constant in bytes, and a share of the weights."""


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


def work_bytes(weights: int) -> int:
    """Returns the estimated memory of a model's passes on a GPU, in bytes.

    Args:
        weights: bytes of the model's weights.
    """
    return WORK_BYTES + int(weights * WORK_SHARE)


def claimed_cache_bytes(weights: int, claimed: int) -> int:
    """Returns the bytes of a replica's claim on a GPU that remain for its cache.

    Args:
        claimed: bytes of the claim without CUDA's context.
    """
    return max(claimed - weights - work_bytes(weights), 0)
