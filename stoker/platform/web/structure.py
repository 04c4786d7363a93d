"""How much a JSON text consists of, counted before any object is made of it.

Objects are what costs: two bytes of text become a list, and a parser has no limit but its memory.
"""

from stoker.base.errors import InvalidRequestError

MAX_CONTAINERS = 1 << 14
"""Objects and lists."""
MAX_MEMBERS = 1 << 15
MAX_ITEMS = 400_000
"""Commas: members, and items of lists. Token ids are many: a context's, or a batch of inputs'."""
FREE_BYTES = 16 << 10
"""A text so short can hold nobody up, and is not counted."""
_PIECE = 64 << 10


class Structure:
    """Counts a text that comes in parts."""

    def __init__(self) -> None:
        self._containers = self._members = self._items = 0
        self._is_string = False
        self._held = b""
        """A backslash whose character has not come."""

    def add(self, data: bytes | bytearray | memoryview) -> None:
        """Raises `InvalidRequestError`."""
        for start in range(0, len(data), _PIECE):
            self._add(bytes(data[start : start + _PIECE]))

    def _add(self, data: bytes) -> None:
        data, self._held = self._held + data, b""
        if b"\\" in data:
            if (len(data) - len(data.rstrip(b"\\"))) % 2:
                data, self._held = data[:-1], b"\\"
            # What is left of quotes begins and ends strings.
            data = data.replace(b"\\\\", b"").replace(b'\\"', b"")
        parts = data.split(b'"')
        outside = b"".join(parts[self._is_string :: 2])
        self._is_string ^= len(parts) % 2 == 0
        self._containers += outside.count(b"[") + outside.count(b"{")
        self._members += outside.count(b":")
        self._items += outside.count(b",")
        if self._containers > MAX_CONTAINERS:
            raise _refusal("objects and lists", MAX_CONTAINERS)
        if self._members > MAX_MEMBERS:
            raise _refusal("members of objects", MAX_MEMBERS)
        if self._items > MAX_ITEMS:
            raise _refusal("items", MAX_ITEMS)


def check(text: bytes | bytearray) -> None:
    """Raise `InvalidRequestError` for a text that consists of too much."""
    if len(text) > FREE_BYTES:
        Structure().add(text)


def _refusal(what: str, most: int) -> InvalidRequestError:
    return InvalidRequestError(f"The JSON has more than {most} {what}, the most that is taken.")
