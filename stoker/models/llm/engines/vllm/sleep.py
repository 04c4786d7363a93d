"""Sleep of vLLM's processes, one for each GPU. Uses internal APIs of the installed vLLM version.

Imported only by vLLM's child process. The processes of several GPUs cannot import Stoker. They
receive functions of this module by value, so each function imports what it needs.
"""

import importlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

_BACKED_UP = ("weights", "runtime", "cudagraph")
"""Tags of memory that vLLM copies to main memory. The rest, such as the cache, is dropped."""


def is_supported() -> bool:
    """Returns True if vLLM can move weights to main memory on this platform."""
    platform: Any = importlib.import_module("vllm.platforms").current_platform
    has_allocator = getattr(platform, "is_cumem_allocator_available", lambda: True)
    return bool(platform.is_sleep_mode_available() and has_allocator())


def run_in_processes(engine: Any, work: Callable[[Any], int], devices: int) -> Sequence[int]:
    """Runs a function of this module in the process of each GPU. Returns the results.

    Args:
        engine: vLLM's `LLMEngine`.
    """
    if devices > 1:
        cloudpickle: Any = importlib.import_module("cloudpickle")
        cloudpickle.register_pickle_by_value(sys.modules[__name__])
    return engine.collective_rpc(work)


def backup_bytes(_worker: Any) -> int:
    """Returns the bytes of main memory that the process needs while it sleeps.

    torch rounds each piece of pinned memory up to a power of two.
    """
    allocator: Any = importlib.import_module("vllm.device_allocator").get_mem_allocator_instance()
    pieces = (
        int(data.handle[1]) for data in allocator.pointer_to_data.values() if data.tag in _BACKED_UP
    )
    return sum(1 << (piece - 1).bit_length() for piece in pieces if piece)


def held_bytes(_worker: Any) -> int:
    """Returns the bytes that the sleeping process holds of its GPU, without CUDA's context.

    torch still counts the memory that vLLM's allocator has released.
    """
    torch: Any = importlib.import_module("torch")
    allocator: Any = importlib.import_module("vllm.device_allocator").get_mem_allocator_instance()
    return max(0, int(torch.cuda.memory_reserved()) - int(allocator.get_current_usage()))


def free_backup(_worker: Any) -> int:
    """Returns the main memory of the last sleep to the system. torch would keep it."""
    torch: Any = importlib.import_module("torch")
    torch._C._host_emptyCache()
    return 0
