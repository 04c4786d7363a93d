"""A lock shared by processes that were forked from its creator.

Python's locks between processes are semaphores, which stay locked if their holder is killed. This
is a robust mutex of POSIX threads: the kernel passes it on.
"""

import ctypes
import errno
import mmap
import struct
import time

_libc = ctypes.CDLL(None, use_errno=False)
_SHARED = _ROBUST = 1
_NOTE_AT = 64
"""Offset of the note behind the mutex, which has 40 bytes on x86-64 and 48 on ARM."""
_NOTE = struct.Struct("d")
_CLOCK_MONOTONIC = 1


class UnsupportedError(Exception):
    """The system's library has no robust mutexes."""


class SharedLock:
    """Lock of one thread of one process. The end of the process releases it, too.

    It carries a number that its holder leaves for the others.
    """

    def __init__(self) -> None:
        """Raises `UnsupportedError`."""
        try:
            self._wait = _libc.pthread_mutex_clocklock
            set_robust = _libc.pthread_mutexattr_setrobust
        except AttributeError as error:
            raise UnsupportedError from error
        self._memory = mmap.mmap(-1, mmap.PAGESIZE)
        self._place = ctypes.c_char.from_buffer(self._memory)
        self._mutex = ctypes.byref(self._place)
        kind = ctypes.create_string_buffer(64)
        _libc.pthread_mutexattr_init(kind)
        _libc.pthread_mutexattr_setpshared(kind, _SHARED)
        set_robust(kind, _ROBUST)
        if failed := _libc.pthread_mutex_init(self._mutex, kind):
            raise UnsupportedError(errno.errorcode.get(failed, str(failed)))

    def take(self, timeout_s: float) -> bool:
        """Returns True if the lock was acquired within the timeout."""
        until = time.monotonic() + timeout_s
        deadline = (ctypes.c_long * 2)(int(until), int(until % 1 * 1e9))
        error_code = self._wait(self._mutex, _CLOCK_MONOTONIC, deadline)
        if error_code == errno.EOWNERDEAD:
            error_code = _libc.pthread_mutex_consistent(self._mutex)
        return error_code == 0

    def give(self) -> None:
        _libc.pthread_mutex_unlock(self._mutex)

    @property
    def note(self) -> float:
        """Number that the last holder left. 0.0 at first."""
        return _NOTE.unpack_from(self._memory, _NOTE_AT)[0]

    @note.setter
    def note(self, value: float) -> None:
        _NOTE.pack_into(self._memory, _NOTE_AT, value)

    def close(self) -> None:
        """Releases the lock's memory in this process, which must not hold the lock."""
        del self._mutex, self._place
        self._memory.close()
