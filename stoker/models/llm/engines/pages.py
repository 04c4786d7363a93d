"""Allocates memory for keys and values that the kernel provides page by page."""

import contextlib
import mmap

import numpy as np
import numpy.typing as npt


def zeroed(size: int) -> npt.NDArray[np.uint8]:
    """Returns `size` bytes of zeros in a mapping of their own. A page takes memory once it is
    written.

    The allocator would reuse freed memory and clear it, which takes memory at once. NumPy requests
    huge pages, so the first token of each layer would take 2 MiB for keys and 2 MiB for values.

    Raises `MemoryError` if the address space has no room.
    """
    try:
        pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"no room for {size} bytes of keys and values") from error
    # A kernel without huge pages rejects the advice and does not need it.
    with contextlib.suppress(OSError):
        pages.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(pages, dtype=np.uint8)
