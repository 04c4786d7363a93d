"""Messages between a replica and its preparation processes.

The contents are in shared memory, so messages are small. They are sent through a socket that keeps
message boundaries.
"""

import mmap
import struct

AREAS = 2
"""Number of areas of a process in the shared memory. One is in use while the other one waits."""
AREA_BYTES = 32 << 20
"""Maximum bytes of an input with its samples. Pages that were never used take no memory."""

JOB = struct.Struct("<BQ")
"""Area, and bytes of the payload at its start: the item and its parameters."""
OUTCOME = struct.Struct("<BBQQd")
"""Area, kind, offset and bytes of the payload in the area, and seconds of the preparation."""
HELLO = struct.Struct("<i")
"""Process id. A process's first message."""
PREPARED, REFUSED, FAILED, TOO_LARGE = range(4)
"""Kinds of an outcome: samples, arguments of an `InputError`, a traceback, or nothing."""

LOAD, START, LOG = b"L", b"S", b"O"
COMMAND = struct.Struct("<cQ")
"""Command for the parent: its kind, and a number. `LOAD`: bytes of the pickled stages that follow.
`START`: the number of a process, with the descriptor of its socket. `LOG`: 0, with the descriptor
of a log file.
"""
_MAP_NORESERVE = 0x4000
"""Constant of the kernel. Python has it from 3.12 on."""
ANSWER_BYTES = 4096
"""Maximum bytes of the parent's answer to `LOAD`: empty text, or the reason that it failed."""


class SharedMemory:
    """Areas for the contents of jobs, shared with processes that are forked later."""

    def __init__(self, processes: int) -> None:
        """Raises `OSError`."""
        self.processes = processes
        flags = mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
        self._memory = mmap.mmap(-1, processes * AREAS * AREA_BYTES, flags=flags)
        self._view = memoryview(self._memory)

    def area(self, process: int, number: int) -> memoryview:
        start = (process * AREAS + number) * AREA_BYTES
        return self._view[start : start + AREA_BYTES]

    def free(self, process: int) -> None:
        """Returns the pages of a process's areas to the kernel."""
        start = process * AREAS * AREA_BYTES
        self._memory.madvise(mmap.MADV_REMOVE, start, AREAS * AREA_BYTES)
