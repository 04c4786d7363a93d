"""Decodes frames of a video from bytes."""

import io
import os
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import av
import numpy
from numpy.typing import NDArray

from stoker.base.media_limits import MediaLimits
from stoker.media import containers
from stoker.media.errors import MediaError, refusing

_CODECS = (
    "h264,hevc,mpeg4,msmpeg4v3,mjpeg,mpeg2video,vp8,vp9,libvpx,libvpx-vp9,av1,libdav1d,gif,"
    "rawvideo,prores"
)
_PIXELS_PER_SECOND = 250_000_000
"""Pixels that may be decoded per second of `limits.video_s`: 4K at 30 frames. Still frames pack
into a few bytes each, so neither a file's size nor its length bounds the work.
"""
_MOST_THREADS = 4
"""Maximum number of decoding threads. Each thread holds its own frames."""

Frame = NDArray[numpy.uint8]


def decode(
    data: bytes | memoryview,
    *,
    num_frames: int | None,
    frame_sampling_rate: int | None,
    limits: MediaLimits,
) -> list[Frame]:
    """Decodes frames of the first video stream: upright RGB, each uint8 of shape (height, width,
    3).

    Accepts MP4, QuickTime, WebM, Matroska, AVI and GIF, recognised by content. Frames are picked by
    their index, regardless of the time between them:

    - without a rate, frame i of n is index `i * total // n`, over the whole clip, as in
      transformers' `default_sample_indices_fn`. That function refuses a clip of fewer than n
      frames; here such a clip repeats frames.
    - with a rate, the indices of its VideoClassificationPipeline, `linspace(0, n *
      frame_sampling_rate - 1, n)`. An index past the end repeats the last frame, while the pipeline
      yields fewer frames than its model needs.
    - without `num_frames`, every frame, or every `frame_sampling_rate`-th.

    A repeated frame is one array, listed again. A file that ends early yields the frames that it
    contains.

    Raises `MediaError` for another format, a damaged file, a clip without frames, and anything
    beyond `limits`.
    """
    _check_numbers(num_frames, frame_sampling_rate, limits)
    with refusing("video"):
        clip = _survey(data, limits)
        indices = _indices(clip.frames, num_frames, frame_sampling_rate)
        frames, decoded_count = _pick(data, clip, indices, limits)
        if len(frames) < len(set(indices)):
            # Not every packet yielded a frame. Their number is known now, so pick again.
            if not decoded_count:
                raise MediaError("The video has no frames.")
            indices = _indices(decoded_count, num_frames, frame_sampling_rate)
            frames, _ = _pick(data, clip, indices, limits)
        return [frames[index] for index in indices]


@dataclass(frozen=True)
class _Clip:
    frames: int
    """Expected number of frames, counted from the packets."""
    width: int
    height: int


def _check_numbers(
    num_frames: int | None, frame_sampling_rate: int | None, limits: MediaLimits
) -> None:
    if num_frames is not None and not 1 <= num_frames <= limits.video_frames:
        raise MediaError(f"The number of frames must be 1 to {limits.video_frames}.")
    if frame_sampling_rate is not None and frame_sampling_rate < 1:
        raise MediaError("The frame sampling rate must be at least 1.")


def _open(data: bytes | memoryview, limits: MediaLimits) -> Any:
    """Opens the file. Its video stream is confined as the file is."""
    demuxer = containers.container(data, containers.VIDEO, "video")
    # The decoder must not allocate a frame that is larger than the header says. Decoders round the
    # size of a frame up, so twice the limit accepts every frame within it.
    confined = {"codec_whitelist": _CODECS, "max_pixels": str(2 * limits.image_pixels)}
    file: Any = av.open(
        io.BytesIO(data),
        format=demuxer,
        options=containers.options(demuxer, _CODECS) | confined,
        metadata_errors="ignore",
    )
    if not file.streams.video:
        file.close()
        raise MediaError("The file holds no video.")
    # The file's options apply only to the probing of its streams.
    file.streams.video[0].codec_context.options = confined
    return file


def _survey(data: bytes | memoryview, limits: MediaLimits) -> _Clip:
    """Counts the frames and measures the clip from its packets, without decoding any."""
    with _open(data, limits) as file:
        stream = file.streams.video[0]
        width, height = stream.width, stream.height
        if width * height > limits.image_pixels:
            raise MediaError(f"The video has more than {limits.image_pixels:,} pixels per frame.")
        frames = 0
        start = end = None
        for packet in file.demux(stream):
            if packet.size and not packet.is_discard:
                frames += 1
            time = packet.dts if packet.pts is None else packet.pts
            if time is None:
                continue
            start = time if start is None else min(start, time)
            end = time if end is None else max(end, time)
            if (end - start) * packet.time_base > limits.video_s:
                raise MediaError(f"The video is longer than {limits.video_s:g} seconds.")
    if not frames or not width or not height:
        raise MediaError("The video has no frames.")
    return _Clip(frames, width, height)


def _indices(total: int, num_frames: int | None, frame_sampling_rate: int | None) -> list[int]:
    """Returns the indices of the requested frames of a clip of `total`, in ascending order."""
    if num_frames is None:
        return list(range(0, total, frame_sampling_rate or 1))
    if frame_sampling_rate is None:
        return [index * total // num_frames for index in range(num_frames)]
    last = num_frames * frame_sampling_rate - 1
    return [min(int(index), total - 1) for index in numpy.linspace(0, float(last), num_frames)]


def _pick(
    data: bytes | memoryview, clip: _Clip, indices: Collection[int], limits: MediaLimits
) -> tuple[dict[int, Frame], int]:
    """Returns the frames at the indices and the number of decoded frames."""
    wanted_indices = set(indices)
    last = max(wanted_indices)
    _check_work(clip, len(wanted_indices), last + 1, limits)
    frames: dict[int, Frame] = {}
    decoded_count = 0
    with _open(data, limits) as file:
        stream = file.streams.video[0]
        stream.thread_type = "AUTO"
        stream.codec_context.thread_count = min(_MOST_THREADS, os.cpu_count() or 1)
        for index, frame in enumerate(file.decode(stream)):
            if (frame.width, frame.height) != (clip.width, clip.height):
                raise MediaError("The video changes its frame size.")
            decoded_count = index + 1
            if index in wanted_indices:
                frames[index] = _upright(frame)
            if index == last:
                break
    return frames, decoded_count


def _check_work(clip: _Clip, kept: int, decoded: int, limits: MediaLimits) -> None:
    pixels = clip.width * clip.height
    if kept > limits.video_frames:
        raise MediaError(f"The video has more than {limits.video_frames} frames.")
    if kept * pixels > limits.video_pixels:
        raise MediaError(
            f"The requested frames have more than {limits.video_pixels:,} pixels in total."
        )
    if decoded * pixels > limits.video_s * _PIXELS_PER_SECOND:
        raise MediaError("The video has too many frames for its size.")


def _upright(frame: Any) -> Frame:
    """Converts a decoded frame to RGB of shape (height, width, 3), rotated by its display
    matrix.
    """
    array: Frame = frame.to_ndarray(format="rgb24")
    matrix = frame.side_data.get("DISPLAYMATRIX")
    if matrix is None:
        return array
    # Rows of three: x' = a x + c y, y' = b x + d y, where y points down (ISO/IEC 14496-12, 6.2.2).
    a, b, _, c, d = numpy.frombuffer(matrix, numpy.int32)[:5].tolist()
    if abs(b) > abs(a):
        array, a, d = array.swapaxes(0, 1), c, b
    if a < 0:
        array = array[:, ::-1]
    if d < 0:
        array = array[::-1]
    return numpy.ascontiguousarray(array)
