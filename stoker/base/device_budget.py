"""Memory of a GPU that replicas of one server may use next to other processes."""

REST_SHARE = 0.9
"""Fraction of the memory not held by other processes that replicas may use, unless the server's
share of the GPU is larger. The rest covers growth between two readings.
"""


def device_budget(total: int, others: int, share: float) -> int:
    """Returns the memory that replicas may use, in the unit of the arguments.

    Args:
        total: memory of the GPU.
        others: memory held by other processes.
        share: fraction of the GPU that replicas may use: `STOKER_GPU_MEMORY_SHARE`.
    """
    return min(int(total * share), int((total - others) * max(share, REST_SHARE)))
