"""Counts the structure of a JSON text before any object is created from it.

Objects are expensive: two bytes of text become a list, and a parser is limited only by its memory.
"""

from stoker.base.errors import InvalidRequestError

MAX_CONTAINERS = 1 << 14
"""Maximum number of objects and lists."""
MAX_MEMBERS = 1 << 15
MAX_ITEMS = 400_000
"""Maximum number of commas, which separate members and list items. Lists of token ids are long:
those of a context or a batch of inputs.
"""
FREE_BYTES = 16 << 10
"""Maximum size in bytes of a text that is not counted, because it is too short to cause delays."""
_PIECE = 64 << 10


class Structure:
    """Counter for a text that arrives in parts."""

    def __init__(self) -> None:
        self._containers = self._members = self._items = 0
        self._is_string = False
        self._held = b""
        """Trailing backslash with an escaped character that has not arrived yet."""

    def add(self, data: bytes | bytearray | memoryview) -> None:
        """Counts more of the text. Raises `InvalidRequestError` if a maximum is exceeded."""
        for start in range(0, len(data), _PIECE):
            self._add(bytes(data[start : start + _PIECE]))

    def _add(self, data: bytes) -> None:
        data, self._held = self._held + data, b""
        if b"\\" in data:
            if (len(data) - len(data.rstrip(b"\\"))) % 2:
                data, self._held = data[:-1], b"\\"
            # The remaining quotes start and end strings.
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
    """Raises `InvalidRequestError` if the text has too much structure."""
    if len(text) > FREE_BYTES:
        Structure().add(text)


def _refusal(what: str, most: int) -> InvalidRequestError:
    return InvalidRequestError(f"The JSON has more {what} than the limit of {most}.")
