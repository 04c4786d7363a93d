"""Identity of a process: a separate user if root starts it, and no capabilities."""

import ctypes
import errno
import os
import struct
from collections.abc import Callable, Collection
from pathlib import Path

from stoker.sandbox import kernel

_READ_ALL = 2
"""CAP_DAC_READ_SEARCH: allows reading files regardless of their permissions."""
_LAST = 64
_CAP_V3 = 0x20080522


def is_mapped(first: int, last: int) -> bool:
    """Returns True if these users exist in this process's user namespace. Containers often have few
    users.
    """
    try:
        lines = Path("/proc/self/uid_map").read_text().splitlines()
    except OSError:
        return False
    ranges = ((int(start), int(start) + int(count)) for start, _, count in map(str.split, lines))
    return any(start <= first and last < end for start, end in ranges)


def become(
    user: int,
    *,
    reads: Callable[[], bool],
    groups: Collection[int] = (),
    keeps_capabilities: bool = False,
) -> None:
    """Changes to this user, its own group and the groups. Raises `OSError`.

    Args:
        reads: returns True if the new user can read the required files; see `drop_capabilities`.
        keeps_capabilities: True if the process keeps all of root's capabilities.
    """
    kernel.prctl(kernel.PR_SET_KEEPCAPS, 1)
    if not keeps_capabilities:
        _drop_bounds()
    os.setgroups([*groups])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    kernel.prctl(kernel.PR_SET_KEEPCAPS, 0)
    if keeps_capabilities:
        permitted = _status("CapPrm")
        _set(permitted, permitted, 0)
    else:
        _keep_reading(reads)


def drop_capabilities(*, reads: Callable[[], bool] = lambda: True) -> None:
    """Drops all capabilities, also for executed programs. Raises `OSError`.

    Args:
        reads: returns True if the process can read the required files without capabilities.
            Otherwise it keeps the capability to read the files of other users, such as root's model
            and interpreter. Landlock limits these files.
    """
    _drop_bounds()
    _set(0, _status("CapPrm"), 0)
    _keep_reading(reads)


def _drop_bounds() -> None:
    kernel.prctl(kernel.PR_CAP_AMBIENT, kernel.PR_CAP_AMBIENT_CLEAR_ALL)
    for capability in range(_LAST):
        if capability != _READ_ALL:
            # Fails for capabilities that the kernel does not know or that this process may not
            # change.
            kernel.prctl(kernel.PR_CAPBSET_DROP, capability)


def _keep_reading(reads: Callable[[], bool]) -> None:
    """Decides whether to keep the read capability, and drops all others. No capability may be in
    effect.
    """
    may_keep = _status("CapPrm") >> _READ_ALL & 1
    kept_mask = 1 << _READ_ALL if may_keep and not reads() else 0
    _set(kept_mask, kept_mask, kept_mask)
    if kept_mask:
        # Keeps the capability for executed programs.
        kernel.prctl(kernel.PR_CAP_AMBIENT, kernel.PR_CAP_AMBIENT_RAISE, _READ_ALL)


def capabilities() -> int:
    """Returns the effective capabilities of this process."""
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
        struct.pack("=III", *(mask >> shift & 0xFFFFFFFF for mask in sets)) for shift in (0, 32)
    ]
    if kernel.libc.capset(head, ctypes.create_string_buffer(b"".join(halves))) != 0:
        raise OSError(ctypes.get_errno() or errno.EPERM, "capabilities could not be dropped")
