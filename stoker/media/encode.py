"""Frames into files: MP4 and WebP. The same frames give the same bytes."""

import io
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import av
import numpy
from av.video.reformatter import ColorRange, Colorspace
from numpy.typing import NDArray
from PIL import Image

_QUALITY = "18"
"""x264's constant rate factor: hardly told from the frames."""
_WHOLE_VECTORS = 128
"""Pixels. Of smaller frames x264's macroblock tree reads more than it has written, and comes out
otherwise each time."""
_BT709 = 1
"""In the tables of ITU-T H.273: primaries, transfer and matrix alike."""
_THUMBNAIL_QUALITY = 85


def mp4(frames: NDArray[numpy.uint8], fps: int) -> bytes:
    """H.264 in MP4, from RGB frames of shape (frames, height, width, 3) with even sides.

    4:2:0 in BT.709, a constant rate, and the index before the content, so that it can be played
    while it is loaded.
    """
    # The index cannot be moved to the front of a file in memory: room is left for it there.
    room = 4096 + 64 * len(frames)
    options = {"moov_size": str(room), "fflags": "+bitexact"}
    buffer = io.BytesIO()
    file: Any = av.open(buffer, "w", format="mp4", options=options)
    with file:
        # A lone thread: the rate control of several depends on their timing.
        coding = {"crf": _QUALITY, "preset": "medium", "threads": "1"}
        if min(frames.shape[1:3]) < _WHOLE_VECTORS:
            coding["x264-params"] = "mbtree=0"
        stream = file.add_stream("libx264", rate=Fraction(fps), options=coding)
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt, stream.time_base = "yuv420p", Fraction(1, fps)
        context = stream.codec_context
        context.color_primaries = context.color_trc = context.colorspace = _BT709
        context.color_range = ColorRange.MPEG
        for frame in _in_yuv(frames):
            file.mux(stream.encode(frame))
        file.mux(stream.encode(None))
    return buffer.getvalue()


def _in_yuv(frames: NDArray[numpy.uint8]) -> Iterator[Any]:
    for number, pixels in enumerate(frames):
        rgb: Any = av.VideoFrame.from_ndarray(pixels, format="rgb24")
        frame = rgb.reformat(
            format="yuv420p",
            dst_colorspace=Colorspace.ITU709,
            dst_color_range=ColorRange.MPEG,
        )
        frame.pts = number
        yield frame


def webp(pixels: NDArray[numpy.uint8]) -> bytes:
    """An RGB image of shape (height, width, 3)."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "WEBP", quality=_THUMBNAIL_QUALITY)
    return buffer.getvalue()
