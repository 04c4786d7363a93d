"""Moves this process's memory to huge pages, so that forks copy fewer entries of page tables.

The engine host has 300 MB of objects in pages of 4 KiB. A fork copies an entry for each page, and
its end removes the entry. This takes 20 ms of processor time, three times per replica of a chat
model. With huge pages it takes 6 ms. A child that writes to a huge page copies 4 KiB, as before.
"""

import ctypes
import select
from collections.abc import Iterator
from pathlib import Path

HUGE_BYTES = 2 << 20
_PIECE_BYTES = 8 << 20
QUIET_ROUNDS = 5
_COLLAPSE = 25
"""MADV_COLLAPSE of Linux 6.1. Other kernels refuse it."""

_libc = ctypes.CDLL(None)


class QuietCollapse:
    """Moves memory to huge pages after some quiet seconds."""

    def __init__(self, stop_at: int) -> None:
        """
        Args:
            stop_at: descriptor. The move stops once it is readable.
        """
        self._stop_at = stop_at
        self._rounds = 0

    def rest(self, *, has_children: bool) -> None:
        """Counts a quiet second. Moves the memory in the fifth one without children."""
        self._rounds = 0 if has_children else self._rounds + 1
        if self._rounds == QUIET_ROUNDS:
            for _ in collapse():
                if select.select([self._stop_at], [], [], 0)[0]:
                    break


def collapse() -> Iterator[None]:
    """Moves all private memory that fills huge pages to huge pages, in pieces. Yields after each
    piece, which takes about 20 ms. Does nothing if the kernel cannot.

    Processes that were forked before keep the former pages, and no longer share them with this
    process. So it should have no children.
    """
    for start, end in _private():
        for piece in range(start, end, _PIECE_BYTES):
            size = min(_PIECE_BYTES, end - piece)
            _libc.madvise(ctypes.c_void_p(piece), ctypes.c_size_t(size), _COLLAPSE)
            yield


def _private() -> Iterator[tuple[int, int]]:
    """Yields the ranges of writable memory without a file that contain whole huge pages."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, mode, _, _, inode, *name = line.split(maxsplit=5)
        if mode != "rw-p" or inode != "0" or name not in ([], ["[heap]"]):
            continue
        start, end = (int(address, 16) for address in addresses.split("-"))
        first, last = -(-start // HUGE_BYTES) * HUGE_BYTES, end // HUGE_BYTES * HUGE_BYTES
        if first < last:
            yield first, last
