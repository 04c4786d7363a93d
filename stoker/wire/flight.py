"""Flight record: the requests that a replica was working on when it died, and the pass that it was
recording.

The replica maps the file, and the gateway reads it after an unexpected end. Memory that is mapped
from a file survives the process, however it ended. A message would still be in a send queue.
"""

import mmap
import os
import struct
from collections.abc import Iterable
from pathlib import Path

SLOTS = 2
PREPARING, RUNNING = range(SLOTS)
"""Slots of the record: requests that are prepared or finished, and requests in the engine."""
CAPACITY = 255
_SLOT = struct.Struct(f"<{CAPACITY + 1}Q")
_NUMBER = struct.Struct("<Q")
_NAME_START = _SLOT.size * SLOTS
_NAME_LENGTH = struct.Struct("<H")
_NAME_BYTES = 254
"""Maximum bytes of a recording's name."""
_SIZE = _NAME_START + _NAME_LENGTH.size + _NAME_BYTES


class FlightRecord:
    """The replica's side of the record. Creates the file at `path` and maps it."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(bytes(_SIZE))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        self.preparing = Slot(self, PREPARING)
        self.running = Slot(self, RUNNING)

    def set(self, slot: int, request_ids: Iterable[int]) -> None:
        """Records the requests that the slot's thread starts on. An empty list means that it is
        done.
        """
        ids = list(dict.fromkeys(request_ids))[:CAPACITY]
        start = slot * _SLOT.size
        # The count is written last, so that a reader never sees ids that are not written yet.
        if ids:
            packed = struct.pack(f"<{len(ids)}Q", *ids)
            self._map[start + 8 : start + 8 + len(packed)] = packed
        self._map[start : start + 8] = _NUMBER.pack(len(ids))

    def note_recording(self, name: str) -> None:
        """Records the name of the pass that is being recorded. Empty means none."""
        content = name.encode(errors="replace")[:_NAME_BYTES]
        start = _NAME_START + _NAME_LENGTH.size
        self._map[start : start + len(content)] = content
        self._map[_NAME_START:start] = _NAME_LENGTH.pack(len(content))


class Slot:
    """Slot of one thread in the record. Inside `with slot.of(ids):`, the thread works on these
    requests.
    """

    __slots__ = ("_number", "_record")

    def __init__(self, record: FlightRecord, number: int) -> None:
        self._record = record
        self._number = number

    def of(self, request_ids: Iterable[int]) -> "Slot":
        self._record.set(self._number, request_ids)
        return self

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None:
        self._record.set(self._number, ())


def read(path: Path) -> set[int]:
    """Returns the requests that were active, as recorded by the last process of this file."""
    preparing, running = read_slots(path)
    return preparing | running


def read_slots(path: Path) -> tuple[set[int], set[int]]:
    """Returns the requests that were being prepared or finished, and the requests in the engine."""
    data = _content(path)
    if not data:
        return set(), set()
    slots = [_SLOT.unpack_from(data, slot * _SLOT.size) for slot in range(SLOTS)]
    preparing, running = (set(ids[: min(count, CAPACITY)]) for count, *ids in slots)
    return preparing, running


def read_recording(path: Path) -> str:
    """Returns the name of the pass that was being recorded. Empty if there was none."""
    data = _content(path)
    if not data:
        return ""
    (length,) = _NAME_LENGTH.unpack_from(data, _NAME_START)
    start = _NAME_START + _NAME_LENGTH.size
    return data[start : start + min(length, _NAME_BYTES)].decode(errors="replace")


def _content(path: Path) -> bytes:
    """Returns the content of a record. Empty if it is missing or damaged."""
    try:
        # A replica may have replaced the file: the flags prevent waiting for it or following a
        # link.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
        with os.fdopen(descriptor, "rb") as file:
            data = file.read(_SIZE) or b""
    except OSError:
        return b""
    return data if len(data) == _SIZE else b""
