"""Decodes sound from bytes or numbers: mono, at the model's sampling rate."""

import io
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any, NamedTuple, cast

import av
import numpy
from av.error import InvalidDataError
from numpy.typing import NDArray

from stoker.base.media_limits import MediaLimits
from stoker.media import containers
from stoker.media.errors import MediaError, refusing
from stoker.media.timeline import Timeline

MIN_RATE = 1_000
"""Lowest accepted sampling rate, in Hz."""
MAX_RATE = 768_000
"""Highest accepted sampling rate, in Hz."""

_CODECS = (
    "pcm_u8,pcm_s16le,pcm_s16be,pcm_s24le,pcm_s24be,pcm_s32le,pcm_s32be,pcm_f32le,pcm_f32be,"
    "pcm_f64le,pcm_f64be,pcm_mulaw,pcm_alaw,adpcm_ms,adpcm_ima_wav,"
    "flac,alac,vorbis,opus,libopus,mp3,mp3float,aac"
)
_BARE = ("mp3", "aac")
"""Streams without a container, in which players skip everything that is not sound: tags, padding, a
cut.
"""
_VALUES_PER_SECOND = 8 * 48_000
"""Maximum number of samples of all channels together per second: silence of many channels packs
into a few bytes.
"""
_CHUNK = 1 << 16
"""Number of samples resampled at a time."""

Samples = NDArray[numpy.float32]


class DecodedSound(NamedTuple):
    samples: Samples
    timeline: Timeline
    """Positions of the samples in their container."""


def decode(data: bytes | memoryview, sampling_rate: int, limits: MediaLimits) -> Samples:
    """Decodes the first sound of a file: see `decode_timed`."""
    return decode_timed(data, sampling_rate, limits).samples


def decode_timed(data: bytes | memoryview, sampling_rate: int, limits: MediaLimits) -> DecodedSound:
    """Decodes the first sound of a file: float32 of shape (samples,), from -1 to 1, at
    `sampling_rate` Hz.

    Accepts WAV, FLAC, Ogg, MP3, AAC, MP4 and WebM, recognised by content. Channels are averaged;
    FFmpeg's own mix to mono would add up to 3 dB. A file that ends early yields its existing
    content if its format shows that: WAV, MP3, AAC.

    Raises `MediaError` for another format, for more than `limits.audio_s` seconds (as decoded: a
    header may lie), for a sound that is empty or not finite, and for a damaged file.
    """
    with refusing("audio"):
        demuxer = containers.container(data, containers.AUDIO, "audio")
        opened: Any = av.open(
            io.BytesIO(data),
            format=demuxer,
            options=containers.options(demuxer, _CODECS),
            metadata_errors="ignore",
        )
        with opened as file:
            if not file.streams.audio:
                raise MediaError("The file holds no audio.")
            stream = file.streams.audio[0]
            # The file's own whitelist binds only the probing of its streams.
            stream.codec_context.options = {"codec_whitelist": _CODECS}
            frames = _frames(file.demux(stream), skipping=demuxer in _BARE)
            first = next(frames, None)
            if first is None:
                raise MediaError("The audio is empty.")
            rate = int(first.sample_rate)
            _check_rate(rate)
            timeline = Timeline()
            begin_s = (file.start_time or 0) / av.time_base
            placed = _placed(chain([first], frames), rate, begin_s, timeline)
            return DecodedSound(_finish(_mono(placed, rate, limits), rate, sampling_rate), timeline)


def _placed(frames: Iterable[Any], rate: int, begin_s: float, timeline: Timeline) -> Iterator[Any]:
    """Passes frames on and enters the times when they are played into a timeline.

    Args:
        begin_s: the earliest time of any stream in the container.
    """
    samples = 0
    for frame in frames:
        if frame.pts is not None:
            timeline.place(samples / rate, float(frame.pts * frame.time_base) - begin_s)
        samples += frame.samples
        yield frame


def from_samples(
    samples: Samples | bytes | memoryview, rate: int, sampling_rate: int, limits: MediaLimits
) -> Samples:
    """Resamples a client's numbers, of shape (samples,) or a buffer of float32, to `sampling_rate`
    Hz.

    `rate` is their original sampling rate in Hz. Raises `MediaError` for a rate outside `MIN_RATE`
    to `MAX_RATE`, for more than `limits.audio_s` seconds, and for input that is empty, not finite,
    or of more than one dimension.
    """
    _check_rate(rate)
    with refusing("audio"):
        array = _as_array(samples)
        if array.ndim != 1:
            raise MediaError("The audio must be a single array of numbers with one channel.")
        _check_length(array.size, rate, limits)
        return _finish(_chunks(array), rate, sampling_rate)


def _as_array(samples: Any) -> Samples:
    if not isinstance(samples, numpy.ndarray):
        return numpy.frombuffer(samples, numpy.float32)
    # Numbers beyond float32 become infinite, which is rejected below.
    with numpy.errstate(over="ignore"):
        return cast(NDArray[Any], samples).astype(numpy.float32, copy=False)


def _chunks(array: Samples) -> Iterator[Samples]:
    for start in range(0, array.size, _CHUNK):
        yield array[start : start + _CHUNK]


def _frames(packets: Iterable[Any], *, skipping: bool) -> Iterator[Any]:
    """Yields the decoded frames. With `skipping`, skips damaged ones; otherwise raises FFmpeg's
    error.
    """
    for packet in packets:
        try:
            frames = packet.decode()
        except InvalidDataError:
            if not skipping:
                raise
        else:
            yield from frames


def _mono(frames: Iterable[Any], rate: int, limits: MediaLimits) -> Iterator[Samples]:
    """Yields each frame as float32 of shape (samples,), within the limits."""
    # FFmpeg interleaves the channels and scales integers to -1 to 1. PyAV 18 reads past the end of
    # the planes of a frame that has eight or more.
    packer: Any = av.AudioResampler(format="flt")
    samples = values = 0
    for frame in frames:
        if frame.sample_rate != rate:
            raise MediaError("The audio changes its sampling rate.")
        channels = frame.layout.nb_channels
        samples += frame.samples
        values += frame.samples * channels
        _check_length(samples, rate, limits)
        if values > limits.audio_s * _VALUES_PER_SECOND:
            raise MediaError("The audio has more samples than this server accepts.")
        for packed in packer.resample(frame):
            by_channel = packed.to_ndarray().reshape(-1, channels)
            # Values that are not finite are rejected when all chunks are joined.
            with numpy.errstate(invalid="ignore", over="ignore"):
                mono = by_channel.mean(axis=1, dtype=numpy.float32)
            yield mono


def _finish(chunks: Iterable[Samples], rate: int, sampling_rate: int) -> Samples:
    """Joins the chunks, resampled to `sampling_rate`."""
    if rate != sampling_rate:
        chunks = _resample(chunks, rate, sampling_rate)
    parts = [chunk for chunk in chunks if chunk.size]
    if not parts:
        raise MediaError("The audio is empty, or too short to be resampled.")
    joined = numpy.concatenate(parts)
    if not numpy.isfinite(joined).all():
        raise MediaError("The audio holds numbers that are not finite.")
    return joined


def _resample(chunks: Iterable[Samples], rate: int, sampling_rate: int) -> Iterator[Samples]:
    resampler: Any = av.AudioResampler(format="flt", layout="mono", rate=sampling_rate)
    for chunk in chunks:
        frame = av.AudioFrame.from_ndarray(chunk[None], format="flt", layout="mono")
        frame.sample_rate = rate
        yield from (out.to_ndarray()[0] for out in resampler.resample(frame))
    yield from (out.to_ndarray()[0] for out in resampler.resample(None))


def _check_rate(rate: int) -> None:
    if not MIN_RATE <= rate <= MAX_RATE:
        raise MediaError(f"The sampling rate must be {MIN_RATE} to {MAX_RATE} Hz.")


def _check_length(samples: int, rate: int, limits: MediaLimits) -> None:
    if samples > limits.audio_s * rate:
        raise MediaError(f"The audio is longer than {limits.audio_s:g} seconds.")
