"""Calls of the kernel that Python has no function for."""

import ctypes
import os
import platform

libc = ctypes.CDLL(None, use_errno=True)

MACHINE = platform.machine()

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_KEEPCAPS = 8
PR_SET_NAME = 15
PR_CAPBSET_DROP = 24
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
PR_CAP_AMBIENT = 47

PR_CAP_AMBIENT_RAISE = 2
PR_CAP_AMBIENT_CLEAR_ALL = 4


def prctl(option: int, first: int, second: int = 0) -> bool:
    """False where the kernel refuses."""
    given = [ctypes.c_ulong(one) for one in (first, second, 0, 0)]
    return libc.prctl(option, *given) == 0


def syscall(number: int, *arguments: object) -> int:
    """Raises `OSError`."""
    given = [ctypes.c_long(one) if isinstance(one, int) else one for one in arguments]
    libc.syscall.restype = ctypes.c_long
    found: int = libc.syscall(ctypes.c_long(number), *given)
    if found < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return found
