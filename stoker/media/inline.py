"""Media in a JSON body, kept as received: never parsed together with the body."""

from array import array
from collections.abc import Iterator

import msgspec
from pydantic_core import from_json

_PIECE = 256 * 1024
"""Bytes parsed per step. Parsing holds the GIL, so other threads run between steps."""
_ESCAPE = 6
"""Bytes of the longest: \\uXXXX."""
_HIGH_SURROGATES = (b"\\ud8", b"\\ud9", b"\\uda", b"\\udb")

_numbers = msgspec.json.Decoder(list[float])


class Inline:
    """Raw content of a string between its quotes, or of a list of numbers between its brackets."""

    __slots__ = ("is_numbers", "raw")

    def __init__(self, raw: bytearray, *, is_numbers: bool) -> None:
        self.raw = raw
        self.is_numbers = is_numbers

    def text(self) -> bytearray:
        """Returns the string in UTF-8, without escapes. Slow. Raises ValueError."""
        if b"\\" not in self.raw:
            return self.raw
        return bytearray().join(
            str(from_json(b'"%b"' % piece)).encode() for piece in _between_escapes(self.raw)
        )

    def samples(self) -> bytes:
        """Returns the numbers as native float32. Slow. Raises ValueError."""
        numbers = array("f")
        start = 0
        while start < len(self.raw):
            end = self.raw.find(b",", start + _PIECE)
            end = len(self.raw) if end < 0 else end
            numbers.extend(_numbers.decode(b"[%b]" % self.raw[start:end]))
            if end == len(self.raw) - 1:
                raise ValueError("a comma too many")
            start = end + 1
        return numbers.tobytes()


def _between_escapes(raw: bytearray) -> Iterator[bytearray]:
    start = 0
    while start < len(raw):
        end = min(start + _PIECE, len(raw))
        if end < len(raw):
            end = _before_escape(raw, start, end)
            if raw[max(start, end - _ESCAPE) : end].lower().startswith(_HIGH_SURROGATES):
                # The low surrogate is in the next escape.
                end -= _ESCAPE
        # Bytes of one character stay together.
        while end < len(raw) and raw[end] & 0xC0 == 0x80:
            end += 1
        yield raw[start:end]
        start = end


def _before_escape(raw: bytearray, start: int, end: int) -> int:
    """Returns an end that is not inside an escape."""
    for back in range(1, _ESCAPE):
        at = end - back
        if raw[at] != ord("\\"):
            continue
        before = raw[start:at]
        is_escape = (len(before) - len(before.rstrip(b"\\"))) % 2 == 0
        length = _ESCAPE if raw[at + 1] == ord("u") else 2
        if is_escape and length > back:
            return at
    return end
