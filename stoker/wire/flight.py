"""The flight record: which requests a replica was working on when it died.

A file mapped by the replica and read by the gateway after an unexpected end. Memory that is mapped
from a file outlives the process, whatever ended it; a message would still sit in a send queue.
"""

import mmap
import struct
from collections.abc import Iterable
from pathlib import Path

SLOTS = 2
"""0: being prepared or finished; 1: in the engine."""
CAPACITY = 255
_SLOT = struct.Struct(f"<{CAPACITY + 1}Q")


class FlightRecord:
    def __init__(self, path: Path) -> None:
        path.write_bytes(bytes(_SLOT.size * SLOTS))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)

    def set(self, slot: int, request_ids: Iterable[int]) -> None:
        """Note what the slot's thread starts on; nothing: it is done."""
        ids = list(dict.fromkeys(request_ids))[:CAPACITY]
        packed = struct.pack(f"<{len(ids)}Q", *ids)
        start = slot * _SLOT.size
        # The count goes in last, so that a reader never sees ids that are not there yet.
        self._map[start + 8 : start + 8 + len(packed)] = packed
        self._map[start : start + 8] = struct.pack("<Q", len(ids))


def read(path: Path) -> set[int]:
    """The requests that were being worked on, as the last process of this file left them."""
    preparing, running = read_slots(path)
    return preparing | running


def read_slots(path: Path) -> tuple[set[int], set[int]]:
    """Those that were being prepared or finished, and those in the engine."""
    try:
        data = path.read_bytes()
    except OSError:
        data = b""
    if len(data) < _SLOT.size * SLOTS:
        return set(), set()
    slots = [_SLOT.unpack_from(data, slot * _SLOT.size) for slot in range(SLOTS)]
    preparing, running = (set(ids[: min(count, CAPACITY)]) for count, *ids in slots)
    return preparing, running
