"""Messages that hold media, as frames: msgpack of the message, then the media's contents."""

from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import msgspec

from stoker.media.media import Media, MediaKind
from stoker.wire.framing import Frame

T = TypeVar("T")

_MediaHead = tuple[MediaKind, int | None, int]
_MEDIA = 1
"""Extension type of media in an item: msgpack of [kind, sampling rate, number of its frame]."""


class Packing(Generic[T]):
    """Of the messages of one type, which may be a union."""

    def __init__(self, kind: Any) -> None:
        self._kind = kind
        # Of a message without media. To make a decoder takes longer than to decode what is small.
        self._decode_plain = msgspec.msgpack.Decoder(kind).decode

    def pack(self, message: T) -> list[Frame]:
        """The frames of a message."""
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
        """The message of its frames. The same content is the same `Media` object wherever it
        stands.

        Raises `msgspec.MsgspecError` for what is none.
        """
        known: dict[bytes, Media] = {}

        def extended(code: int, data: memoryview) -> Media:
            head = bytes(data)
            if head not in known:
                kind, rate, place = msgspec.msgpack.decode(head, type=_MediaHead)
                known[head] = Media(kind, sampling_rate=rate, content=_content(frames, place))
            return known[head]

        if len(frames) == 1:
            return self._decode_plain(frames[0])
        found: T = msgspec.msgpack.decode(frames[0], type=self._kind, ext_hook=extended)
        return found


def _content(frames: Sequence[Frame], place: int) -> bytes | memoryview:
    if not 0 <= place < len(frames) - 1:
        raise msgspec.ValidationError("media that did not come")
    return frames[1 + place]  # type: ignore[return-value]
