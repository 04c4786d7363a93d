"""Messages with media, as frames: msgpack of the message, then the contents of the media."""

import threading
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import msgspec

from stoker.media.media import Media, MediaKind
from stoker.wire.framing import Frame

T = TypeVar("T")

_MediaHead = tuple[MediaKind, int | None, int]
_MEDIA = 1
"""Extension type of media in an item: msgpack of [kind, sampling rate, number of its frame]."""


class _Unpacked(threading.local):
    """State of the message that the thread unpacks."""

    frames: Sequence[Frame] = ()

    def __init__(self) -> None:
        self.known: dict[bytes, Media] = {}


class Packing(Generic[T]):
    """Packs and unpacks messages of one type, which may be a union."""

    def __init__(self, kind: Any) -> None:
        # Shared by all messages: creating a decoder takes longer than decoding a small message.
        self._decode = msgspec.msgpack.Decoder(kind, ext_hook=self._extended).decode
        self._now = _Unpacked()

    def pack(self, message: T) -> list[Frame]:
        """Returns the frames of a message."""
        contents: list[Frame] = []
        places: dict[int, int] = {}

        def extend(value: Any) -> msgspec.msgpack.Ext:
            if not isinstance(value, Media) or value.content is None:
                raise TypeError(f"a message holds a {type(value).__name__}")
            place = places.setdefault(id(value.content), len(contents))
            if place == len(contents):
                contents.append(value.content)
            head = [value.kind, value.sampling_rate, place]
            return msgspec.msgpack.Ext(_MEDIA, msgspec.msgpack.encode(head))

        return [msgspec.msgpack.encode(message, enc_hook=extend), *contents]

    def unpack(self, frames: Sequence[Frame]) -> T:
        """Returns the message of these frames. Equal references to content become the same `Media`
        object.

        Raises `msgspec.MsgspecError` for an invalid message.
        """
        now = self._now
        now.frames = frames
        try:
            return self._decode(frames[0])
        finally:
            now.frames = ()
            if now.known:
                now.known = {}

    def _extended(self, code: int, data: memoryview) -> Media:
        now, head = self._now, bytes(data)
        if head not in now.known:
            kind, rate, place = msgspec.msgpack.decode(head, type=_MediaHead)
            content = _content(now.frames, place)
            now.known[head] = Media(kind, sampling_rate=rate, content=content)
        return now.known[head]


def _content(frames: Sequence[Frame], place: int) -> bytes | memoryview:
    if not 0 <= place < len(frames) - 1:
        raise msgspec.ValidationError("media is missing from the message")
    return frames[1 + place]  # type: ignore[return-value]
