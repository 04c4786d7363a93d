"""Messages of several frames over a stream of bytes.

A message is the number of its frames, 4 bytes, the length of each, 8 bytes, and the frames; numbers
begin with their lowest byte. Both ends are on one machine: its sockets lose and reorder nothing.
"""

import struct
from collections.abc import Iterator, Sequence

Frame = bytes | bytearray | memoryview
_MOST_FRAMES = 1 << 16
MOST_BYTES = 1 << 32
"""Of a message."""
_JOINED_BELOW = 1 << 16
"""Copying what is smaller costs less than handing it over piece by piece."""
_COUNT = struct.Struct("<I")
_HEADS = [struct.Struct(f"<I{count}Q") for count in range(4)]
"""Of nearly all messages."""


class FramingError(Exception):
    """What has come is no message, or a longer one than is taken."""


def framed(frames: Sequence[Frame]) -> list[Frame]:
    """A message's bytes, in pieces to be sent in order, none of them empty."""
    sizes = [len(frame) for frame in frames]
    head = _head(len(frames)).pack(len(frames), *sizes)
    if sum(sizes) < _JOINED_BELOW:
        return [b"".join((head, *frames))]
    return [head, *(frame for frame in frames if len(frame))]


def _head(count: int) -> struct.Struct:
    return _HEADS[count] if count < len(_HEADS) else struct.Struct(f"<I{count}Q")


class FrameReader:
    """Makes messages of the pieces in which they arrive."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        """
        Args:
            most_bytes: of a message's frames together.
        """
        self.most_bytes = most_bytes
        self._pieces: list[bytes] = []
        self._held = 0
        self._needed = _COUNT.size
        """With fewer bytes there is nothing to be done."""

    def feed(self, piece: bytes) -> Iterator[list[bytes]]:
        """The messages that are complete now, each as its frames. Raises `FramingError`.

        To be read to its end before the next piece is given.
        """
        self._pieces.append(piece)
        self._held += len(piece)
        if self._held < self._needed:
            return
        # Once for each message, however many pieces it came in.
        data = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        at = 0
        while sizes := self._sizes(data, at):
            at += _COUNT.size + 8 * len(sizes)
            frames: list[bytes] = []
            for size in sizes:
                frames.append(data[at : at + size])
                at += size
            yield frames
        rest = data[at:] if at else data
        self._pieces, self._held = ([rest] if rest else []), len(rest)

    def _sizes(self, data: bytes, at: int) -> tuple[int, ...] | None:
        """Of the frames of a message that has come as a whole; else it notes what is needed."""
        self._needed = _COUNT.size
        have = len(data) - at
        if have < self._needed:
            return None
        [count] = _COUNT.unpack_from(data, at)
        if not 0 < count <= min(_MOST_FRAMES, 1 + self.most_bytes):
            raise FramingError(f"a message of {count} frames")
        self._needed += 8 * count
        if have < self._needed:
            return None
        sizes = _head(count).unpack_from(data, at)[1:]
        if (total := sum(sizes)) > self.most_bytes:
            raise FramingError(f"a message of {total} bytes")
        self._needed += total
        return sizes if have >= self._needed else None
