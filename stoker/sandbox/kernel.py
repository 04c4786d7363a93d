"""Kernel calls for which Python has no function."""

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
    """Calls prctl. Returns False if the kernel rejects the call."""
    converted = [ctypes.c_ulong(value) for value in (first, second, 0, 0)]
    return libc.prctl(option, *converted) == 0


def syscall(number: int, *arguments: object) -> int:
    """Makes a system call and returns its result. Raises `OSError`."""
    converted = [ctypes.c_long(value) if isinstance(value, int) else value for value in arguments]
    libc.syscall.restype = ctypes.c_long
    result: int = libc.syscall(ctypes.c_long(number), *converted)
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return result
