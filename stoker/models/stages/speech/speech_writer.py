"""Streams speech while the model makes it: as a file or as OpenAI's events."""

import base64
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from stoker.media.encode_audio import encoder
from stoker.models.stages.base import Sample
from stoker.wire import sse

_EVENT_BYTES = 24 << 10
"""Maximum number of sound bytes in one event, because line readers have limits."""


class SpeechWriter:
    """Writes sound, or OpenAI's events of it (see `StreamWriter`)."""

    def __init__(self, form: str, rate: int, speed: float, *, events: bool) -> None:
        self._encoder = encoder(form, rate, speed)
        self._events = events
        self._left = 0
        self._tokens = 0
        self._sounds = False

    def begin(self, samples: Sequence[Sample]) -> bytes:
        self._left = len(samples)
        self._tokens = sum(sample.features["input_ids"].shape[1] for sample in samples)
        # The first part is sent after the first sound, so that earlier failures get an HTTP status.
        return b""

    def partial(self, position: int, output: Mapping[str, Any]) -> bytes:
        return b""

    def add(self, output: Mapping[str, Any]) -> bytes:
        import numpy

        waveform = output["waveform"][0].numpy()
        if not numpy.isfinite(waveform).all():
            raise ValueError("the model produced a sound with NaN or infinity")
        self._left -= 1
        self._sounds = self._sounds or waveform.size > 0
        if not (self._left or self._sounds):
            raise ValueError("the model made no sound")
        content = self._encoder.add(waveform.clip(-1, 1), last=not self._left)
        return b"".join(self._deltas(content)) if self._events else content

    def end(self) -> bytes:
        if not self._events:
            return b""
        # Speech models generate sound and no tokens.
        usage = {
            "input_tokens": self._tokens,
            "output_tokens": 0,
            "total_tokens": self._tokens,
        }
        return sse.event({"type": "speech.audio.done", "usage": usage})

    def _deltas(self, content: bytes) -> Iterator[bytes]:
        for start in range(0, len(content), _EVENT_BYTES):
            piece = base64.b64encode(content[start : start + _EVENT_BYTES]).decode()
            yield sse.event({"type": "speech.audio.delta", "audio": piece})
