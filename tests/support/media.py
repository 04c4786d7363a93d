"""Small generated media."""

import io
import wave
from typing import Any

import av
import numpy
from PIL import Image

from stoker.media.media import Media


def image(seed: int = 0, size: tuple[int, int] = (70, 50)) -> Image.Image:
    """Returns a smooth random RGB image of size (width, height)."""
    coarse = numpy.random.default_rng(seed).integers(0, 256, (6, 8, 3), dtype=numpy.uint8)
    return Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC)


def png(picture: Image.Image) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    return buffer.getvalue()


def image_media(picture: Image.Image) -> Media:
    return Media("image", content=png(picture))


def sound(seed: int = 0, seconds: float = 0.5, rate: int = 16_000) -> numpy.ndarray:
    """Returns a random chord in noise: float32 of shape (samples,), quantized to 16 bits."""
    draw = numpy.random.default_rng(seed)
    time = numpy.arange(int(seconds * rate)) / rate
    tones = sum(numpy.sin(2 * numpy.pi * f * time) for f in draw.uniform(100, 3000, 3))
    samples = 0.2 * tones + draw.normal(0, 0.05, time.size)
    return (numpy.round(samples * 2**15) / 2**15).clip(-1, 1 - 2**-15).astype(numpy.float32)


def wav(samples: numpy.ndarray, rate: int = 16_000) -> bytes:
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as out:
        out.setparams((1, 2, rate, samples.size, "NONE", ""))
        out.writeframes((samples * 2**15).astype("<i2").tobytes())
    return buffer.getvalue()


def video(seed: int = 0, frames: int = 12, size: tuple[int, int] = (48, 32)) -> bytes:
    """Returns an MP4 with frames that differ from each other."""
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="mp4") as out:
        stream: Any = out.add_stream("mpeg4", rate=10)
        stream.width, stream.height = size
        stream.pix_fmt = "yuv420p"
        for index in range(frames):
            picture = image(1000 * seed + index, size)
            out.mux(stream.encode(av.VideoFrame.from_image(picture)))
        out.mux(stream.encode(None))
    return buffer.getvalue()
