"""Messages of several frames over a byte stream.

A message consists of the number of its frames (4 bytes), the length of each (8 bytes), and the
frames. Numbers are little-endian. Both ends are on one machine, where sockets do not lose or
reorder data.
"""

import struct
from collections.abc import Iterator, Sequence

Frame = bytes | bytearray | memoryview
_MOST_FRAMES = 1 << 16
MOST_BYTES = 1 << 32
"""Maximum bytes of a message."""
_JOINED_BELOW = 1 << 16
"""Size in bytes below which copying frames costs less than sending them separately."""
_COUNT = struct.Struct("<I")
_HEADS = [struct.Struct(f"<I{count}Q") for count in range(4)]
"""Headers of nearly all messages, by number of frames."""


class FramingError(Exception):
    """The received bytes are not a message, or the message is too long."""


def framed(frames: Sequence[Frame]) -> list[Frame]:
    """Returns a message's bytes as non-empty pieces, to be sent in order."""
    sizes = [len(frame) for frame in frames]
    head = _head(len(frames)).pack(len(frames), *sizes)
    if sum(sizes) < _JOINED_BELOW:
        return [b"".join((head, *frames))]
    return [head, *(frame for frame in frames if len(frame))]


def _head(count: int) -> struct.Struct:
    return _HEADS[count] if count < len(_HEADS) else struct.Struct(f"<I{count}Q")


class FrameReader:
    """Assembles messages from the pieces in which they arrive."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        """
        Args:
            most_bytes: the maximum bytes of a message's frames together.
        """
        self.most_bytes = most_bytes
        self._pieces: list[bytes] = []
        self._held = 0
        self._needed = _COUNT.size
        """Number of bytes without which no progress is possible."""

    def feed(self, piece: bytes) -> Iterator[list[bytes]]:
        """Yields the frames of each message that is complete. Raises `FramingError`.

        The caller must read the iterator to its end before it passes the next piece.
        """
        self._pieces.append(piece)
        self._held += len(piece)
        if self._held < self._needed:
            return
        # Joined once per message, regardless of its number of pieces.
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
        """Returns the sizes of a complete message's frames. For an incomplete one, records the
        number of bytes needed and returns None.
        """
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
