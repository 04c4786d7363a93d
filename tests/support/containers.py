"""Media files with sound at chosen times."""

import io
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import av
import numpy

RATE = 48_000
CODECS = {"mp4": "aac", "mov": "pcm_s16le", "matroska": "flac", "webm": "libopus"}
VIDEO = {"mp4": "mpeg4", "mov": "mpeg4", "matroska": "mpeg4", "webm": "libvpx"}


def recorded(
    container: str,
    spans: list[tuple[float, float]],
    video_s: float | None = None,
    sound: numpy.ndarray | None = None,
) -> bytes:
    """Returns a file with sound in these spans (seconds) and optionally a video that starts at
    `video_s`.

    Args:
        sound: samples at 48 kHz for all spans, concatenated. None generates noise.
    """
    buffer = io.BytesIO()
    with av.open(buffer, "w", format=container) as opened:
        file: Any = opened
        codec = {"mp3": "libmp3lame", "ogg": "libopus", "wav": "pcm_s16le"} | CODECS
        stream = file.add_stream(codec.get(container, container), rate=RATE)
        stream.layout = "mono"
        pictures = file.add_stream(VIDEO[container], rate=10) if video_s is not None else None
        if pictures:
            pictures.width = pictures.height = 32
            pictures.pix_fmt = "yuv420p"
            for number in range(20):
                frame = av.VideoFrame(32, 32, "yuv420p")
                frame.pts = round((video_s or 0) * 10) + number
                frame.time_base = Fraction(1, 10)
                file.mux(pictures.encode(frame))
            file.mux(pictures.encode())
        for frame in _frames(spans, sound):
            for packet in stream.encode(frame):
                file.mux(packet)
        file.mux(stream.encode())
    return buffer.getvalue()


def _frames(spans: list[tuple[float, float]], sound: Any) -> Iterator[Any]:
    """Yields the sound in frames of 20 ms."""
    size = RATE // 50
    count = sum(round(end * 50) - round(begin * 50) for begin, end in spans)
    noise = numpy.random.default_rng(0).normal(0, 0.1, count * size)
    chunks = iter((noise if sound is None else sound)[: count * size].reshape(-1, size))
    for begin, end in spans:
        for at in range(round(begin * 50), round(end * 50)):
            samples = next(chunks)[None].astype(numpy.float32)
            frame: Any = av.AudioFrame.from_ndarray(samples, format="fltp", layout="mono")
            frame.sample_rate, frame.pts = RATE, at * size
            frame.time_base = Fraction(1, RATE)
            yield frame
