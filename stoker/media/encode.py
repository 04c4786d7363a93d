"""Encodes frames as MP4 and WebP files. Equal frames produce equal bytes."""

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
"""x264's constant rate factor. At this value the result is hardly distinguishable from the
frames.
"""
_WHOLE_VECTORS = 128
"""Minimum side in pixels for x264's macroblock tree. For smaller frames it reads more than it
wrote, and its result differs each time.
"""
_BT709 = 1
"""Number of BT.709 in the tables of ITU-T H.273: the same for primaries, transfer and matrix."""
_THUMBNAIL_QUALITY = 85


def mp4(frames: NDArray[numpy.uint8], fps: int) -> bytes:
    """Encodes RGB frames of shape (frames, height, width, 3) with even sides as H.264 in MP4.

    The video is 4:2:0 in BT.709 with a constant rate. The index precedes the content, so that it
    can be played while it loads.
    """
    # The index of a file in memory cannot be moved to the front later, so space is reserved there.
    room = 4096 + 64 * len(frames)
    options = {"moov_size": str(room), "fflags": "+bitexact"}
    buffer = io.BytesIO()
    file: Any = av.open(buffer, "w", format="mp4", options=options)
    with file:
        # A single thread: the rate control of several threads depends on their timing.
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
    """Encodes an RGB image of shape (height, width, 3) as WebP."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "WEBP", quality=_THUMBNAIL_QUALITY)
    return buffer.getvalue()
