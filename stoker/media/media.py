"""A piece of media on its way: from a client's word for it to bytes in a replica."""

from typing import Literal

from stoker.media.inline import Inline

MediaKind = Literal["image", "audio", "video"]


class Media:
    """An image, a recording or a video of a request, before it is decoded.

    The gateway fills `content` in from `source`; a replica only ever sees content. The same object
    may stand in several items: one image with several questions is fetched and decoded once.

    Not a dataclass: msgspec would put one into a message as a plain map.
    """

    __slots__ = ("content", "kind", "sampling_rate", "source")

    def __init__(
        self,
        kind: MediaKind,
        *,
        source: str | Inline | None = None,
        content: bytes | memoryview | None = None,
        sampling_rate: int | None = None,
    ) -> None:
        self.kind = kind
        self.source = source
        """What the client wrote: a URL, a data URI, base64, a path, or numbers."""
        self.content = content
        """An encoded file; with `sampling_rate` set, native float32 samples."""
        self.sampling_rate = sampling_rate
        """Of raw samples, Hz; 0: the model's own."""
