"""Who a process is: a user of its own where root starts it, and no capability."""

import ctypes
import errno
import os
import struct
from collections.abc import Callable
from pathlib import Path

from stoker.sandbox import kernel

_READ_ALL = 2
"""CAP_DAC_READ_SEARCH: files are read whatever their permissions say."""
_LAST = 64
_CAP_V3 = 0x20080522


def is_mapped(first: int, last: int) -> bool:
    """Whether these users exist where this process lives: containers often have few of them."""
    try:
        lines = Path("/proc/self/uid_map").read_text().splitlines()
    except OSError:
        return False
    ranges = ((int(start), int(start) + int(count)) for start, _, count in map(str.split, lines))
    return any(start <= first and last < end for start, end in ranges)


def become(user: int, *, reads: Callable[[], bool]) -> None:
    """Be this user and group, and of no other group. Raises `OSError`.

    Args:
        reads: whether it can read what it needs, as who it is then; see `drop_capabilities`.
    """
    kernel.prctl(kernel.PR_SET_KEEPCAPS, 1)
    _drop_bounds()
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    kernel.prctl(kernel.PR_SET_KEEPCAPS, 0)
    _keep_reading(reads)


def drop_capabilities(*, reads: Callable[[], bool] = lambda: True) -> None:
    """Have no capability, nor get one by what is executed. Raises `OSError`.

    Args:
        reads: whether it can read what it needs without. If not, it keeps the one to read what
            belongs to others: a model and an interpreter of root's. Landlock says where they are.
    """
    _drop_bounds()
    _set(0, _status("CapPrm"), 0)
    _keep_reading(reads)


def _drop_bounds() -> None:
    kernel.prctl(kernel.PR_CAP_AMBIENT, kernel.PR_CAP_AMBIENT_CLEAR_ALL)
    for one in range(_LAST):
        if one != _READ_ALL:
            # What the kernel does not know, or what this process may not change.
            kernel.prctl(kernel.PR_CAPBSET_DROP, one)


def _keep_reading(reads: Callable[[], bool]) -> None:
    """With no capability in effect: decide on the one, and drop all others."""
    may_keep = _status("CapPrm") >> _READ_ALL & 1
    kept = 1 << _READ_ALL if may_keep and not reads() else 0
    _set(kept, kept, kept)
    if kept:
        # For what it executes.
        kernel.prctl(kernel.PR_CAP_AMBIENT, kernel.PR_CAP_AMBIENT_RAISE, _READ_ALL)


def capabilities() -> int:
    """Those that this process may use."""
    return _status("CapEff")


def _status(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1], 16)
    return 0


def _set(effective: int, permitted: int, inheritable: int) -> None:
    head = ctypes.create_string_buffer(struct.pack("=Ii", _CAP_V3, 0))
    sets = (effective, permitted, inheritable)
    halves = [
        struct.pack("=III", *(one >> shift & 0xFFFFFFFF for one in sets)) for shift in (0, 32)
    ]
    if kernel.libc.capset(head, ctypes.create_string_buffer(b"".join(halves))) != 0:
        raise OSError(ctypes.get_errno() or errno.EPERM, "capabilities could not be dropped")
