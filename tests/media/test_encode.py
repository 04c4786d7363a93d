"""Video files from frames."""

import io
from fractions import Fraction
from typing import Any

import av
import numpy
import pytest
from PIL import Image

from stoker.media import encode


def clip(frames: int = 24) -> Any:
    """Returns a red, a green and a blue stripe over grey that grows lighter."""
    pixels = numpy.zeros((frames, 48, 64, 3), numpy.uint8)
    pixels[:] = numpy.linspace(0, 255, frames, dtype=numpy.uint8)[:, None, None, None]
    for place, colour in enumerate(((220, 20, 20), (20, 220, 20), (20, 20, 220))):
        pixels[:, 8 * place : 8 * place + 8] = colour
    return pixels


@pytest.mark.parametrize(("frames", "fps"), [(1, 25), (24, 16), (97, 24), (150, 60)])
def test_mp4_holds_the_frames(frames: int, fps: int) -> None:
    pixels = clip(frames)
    data = encode.mp4(pixels, fps)
    with av.open(io.BytesIO(data)) as file:
        stream: Any = file.streams.video[0]
        context = stream.codec_context
        assert (context.name, context.pix_fmt, context.width, context.height) == (
            "h264",
            "yuv420p",
            64,
            48,
        )
        assert (context.color_primaries, context.color_trc, context.colorspace) == (1, 1, 1)
        assert stream.average_rate == fps
        assert stream.duration * stream.time_base == Fraction(frames, fps)
        read: list[Any] = list(file.decode(stream))
    assert [frame.time for frame in read] == pytest.approx([n / fps for n in range(frames)])
    decoded = numpy.stack([frame.to_ndarray(format="rgb24") for frame in read]).astype(int)
    # Away from the stripes' edges, where the halved colour resolution is visible.
    for rows in (slice(2, 6), slice(10, 14), slice(18, 22), slice(28, 48)):
        assert abs(decoded[:, rows] - pixels[:, rows]).mean() < 5


def test_mp4_can_be_played_while_it_is_loaded() -> None:
    data = encode.mp4(clip(150), 60)
    assert 0 < data.index(b"moov") < data.index(b"mdat")


def test_the_same_frames_give_the_same_bytes() -> None:
    # The bytes of these clips differed between runs with the macroblock tree.
    for levels, size, count in ((33, (16, 24), 9), (67, (16, 24), 13)):
        noise = numpy.random.default_rng(1).normal(120, levels, (count, size[1], size[0], 3))
        small = [Image.fromarray(image) for image in noise.clip(0, 255).astype(numpy.uint8)]
        pixels = numpy.stack(
            [numpy.asarray(image.resize((64, 96), Image.Resampling.BICUBIC)) for image in small]
        )
        assert len({encode.mp4(pixels, 10) for _ in range(12)}) == 1
    assert encode.webp(clip()[0]) == encode.webp(clip()[0])
