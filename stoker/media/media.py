"""A piece of media on its way from a client's source to bytes in a replica."""

from typing import Literal

from stoker.media.inline import Inline

MediaKind = Literal["image", "audio", "video"]


class Media:
    """Image, recording or video of a request, before it is decoded.

    The gateway fills in `content` from `source`; a replica only sees content. Several items may
    share one object: one image with several questions is fetched and decoded once.

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
        """The client's source: a URL, a data URI, base64, a path, or numbers."""
        self.content = content
        """An encoded file; with `sampling_rate` set, native float32 samples."""
        self.sampling_rate = sampling_rate
        """Sampling rate of raw samples in Hz. 0 means the model's own."""
