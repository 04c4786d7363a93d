"""Limit on the preparation processes of a machine, shared by its replicas.

A permit is a locked byte of a file that the engine host opens for all replicas. The kernel frees
the locks of a process when it ends. Children of a replica do not inherit them.
"""

import fcntl
import os
import struct

_WANTED_AT = 1 << 20
"""First of the bytes that replicas lock while they wait for their first permit."""
_MOST_WAITING = 64
_LOCK = struct.Struct("hhqqi0q")
"""`struct flock` of the kernel: kind, origin, first byte, number of bytes, process."""


class Permits:
    """Permits of one process. The thread that takes them need not be the one that returns them."""

    def __init__(self, descriptor: int) -> None:
        """
        Args:
            descriptor: the file. The process must never close it, because that frees its locks.
        """
        self.descriptor = descriptor
        self._held: set[int] = set()
        self._waiting: int | None = None

    @classmethod
    def create(cls) -> "Permits":
        """Returns permits for this process and the processes that it forks. Raises `OSError`."""
        return cls(os.memfd_create("preparation permits"))

    def take(self, most: int) -> int | None:
        """Returns a permit. None if the replicas of the machine hold `most` permits."""
        permit = next((n for n in range(most) if n not in self._held and self._lock(n)), None)
        if permit is not None:
            self._held.add(permit)
        self._wait(is_waiting=not self._held)
        return permit

    def give(self, permit: int) -> None:
        self._held.remove(permit)
        fcntl.lockf(self.descriptor, fcntl.LOCK_UN, 1, permit)

    @property
    def is_waiting(self) -> bool:
        """True if this process waits for its first permit."""
        return self._waiting is not None

    def is_wanted(self) -> bool:
        """Returns True if another replica waits for its first permit."""
        asked = _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, _WANTED_AT, _MOST_WAITING, 0)
        answer = fcntl.fcntl(self.descriptor, fcntl.F_GETLK, asked)
        return _LOCK.unpack(answer)[0] != fcntl.F_UNLCK

    def stop_waiting(self) -> None:
        """Withdraws the request for a first permit."""
        self._wait(is_waiting=False)

    def _wait(self, *, is_waiting: bool) -> None:
        if is_waiting and self._waiting is None:
            places = range(_WANTED_AT, _WANTED_AT + _MOST_WAITING)
            self._waiting = next(filter(self._lock, places), None)
        elif not is_waiting and self._waiting is not None:
            fcntl.lockf(self.descriptor, fcntl.LOCK_UN, 1, self._waiting)
            self._waiting = None

    def _lock(self, place: int) -> bool:
        try:
            fcntl.lockf(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
        except OSError:
            return False
        return True
