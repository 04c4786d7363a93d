"""Detects errors due to a lack of memory on any device, and frees the memory that torch caches."""

import gc
import sys
from typing import Any

_PHRASES = (
    "allocate memory",
    "CUDA out of memory",
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "bad_alloc",
)
"""Messages of plain RuntimeErrors. torch raises "DefaultCPUAllocator: can't allocate memory" for a
CPU. CUDA's libraries report their own status.
"""


def is_out_of_memory(error: BaseException) -> bool:
    """True if the error means that a device or the machine has too little free memory."""
    torch: Any = sys.modules.get("torch")
    kinds = (MemoryError, torch.OutOfMemoryError) if torch else (MemoryError,)
    return isinstance(error, kinds) or any(phrase in str(error) for phrase in _PHRASES)


def free_unused() -> None:
    """Returns the memory of deleted tensors to the device. Call it outside of `except`: a caught
    error keeps the tensors of its frames alive.
    """
    gc.collect()
    torch: Any = sys.modules.get("torch")
    if torch and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
