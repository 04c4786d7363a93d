"""Streams an image's answer as events: unfinished images, then the finished one."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from stoker.models.diffusion.drawing.image_files import encode, to_picture
from stoker.models.stages.base import Sample
from stoker.wire import sse
from stoker.wire.image_answer import DrawingOptions, StreamHead

# Tells the client that the request was accepted, before the first image exists.
_BEGUN = b": drawing\n\n"


class EventWriter:
    """Writes events with the names of the openai SDK's `ImageGenStreamEvent` and
    `ImageEditStreamEvent`.
    """

    def __init__(
        self,
        options: DrawingOptions,
        head: StreamHead,
        finished: Callable[[Mapping[str, Any]], Any],
    ) -> None:
        self._options = options
        self._head = head
        self._finished = finished
        self._shown = 0
        self._tokens = 0

    def begin(self, samples: Sequence[Sample]) -> bytes:
        self._tokens = samples[0].extras.get("tokens", 0)
        return _BEGUN

    def partial(self, position: int, output: Mapping[str, Any]) -> bytes:
        event = self._event("partial_image", to_picture(output["pixels"]))
        event["partial_image_index"] = self._shown
        self._shown += 1
        return _named(event)

    def add(self, output: Mapping[str, Any]) -> bytes:
        event = self._event("completed", self._finished(output))
        event["usage"] = {
            "input_tokens": self._tokens,
            "input_tokens_details": {"text_tokens": self._tokens, "image_tokens": 0},
            "output_tokens": 0,
            "total_tokens": self._tokens,
        }
        return _named(event)

    def end(self) -> bytes:
        return b""

    def _event(self, kind: str, picture: Any) -> dict[str, Any]:
        file = encode(picture, self._options.output_format, self._options.quality)
        width, height = picture.size
        # msgspec encodes bytes as base64.
        return {
            "type": f"{self._head.event}.{kind}",
            "b64_json": file,
            "created_at": self._head.created_at,
            "size": f"{width}x{height}",
            "quality": "auto",
            "background": "opaque",
            "output_format": self._options.output_format,
        }


def _named(event: Mapping[str, Any]) -> bytes:
    return sse.event(event, event["type"])
