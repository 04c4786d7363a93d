"""Encodes sound as a file, piece by piece while it is generated."""

import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Protocol

import av
import numpy
from numpy.typing import NDArray

from stoker.media.tempo import Tempo

PCM_RATE = 24_000
"""Sampling rate of `pcm` in Hz, the same as OpenAI's. The format has no header to state it."""

_BIT_RATE = 64_000
"""Bit rate of lossy formats: one voice needs no more, and every sampling rate allows it."""
_OPUS_RATES = (8_000, 12_000, 16_000, 24_000, 48_000)
_MP3_RATES = (8_000, 11_025, 12_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000)
_AAC_RATES = (7_350, *_MP3_RATES, 64_000, 88_200, 96_000)
_UNKNOWN = 0xFFFFFFFF
"""Stands for a length that is not known yet. Readers then read to the end."""
_HEADER = 36
"""Number of bytes of a WAV file between its own length and that of its samples."""
_SHORTEST = 100
"""A sound lasts at least this fraction of a second (1/100). From much less, resamplers produce
nothing.
"""

Samples = NDArray[numpy.float32]


@dataclass(frozen=True)
class _Codec:
    name: str
    container: str
    rates: tuple[int, ...] = ()
    """Accepted sampling rates in Hz, ascending. Empty means any."""
    options: Mapping[str, str] | None = None
    """Options of the container."""

    def rate(self, given: int) -> int:
        """Returns the lowest accepted rate that preserves the whole sound, or else the highest
        one.
        """
        return next((rate for rate in self.rates if rate >= given), max(self.rates, default=given))


_CODECS: Mapping[str, _Codec] = {
    # Without the header that states the length, which would be written last.
    "mp3": _Codec("libmp3lame", "mp3", _MP3_RATES, {"write_xing": "0", "id3v2_version": "0"}),
    "opus": _Codec("libopus", "ogg", _OPUS_RATES, {"page_duration": "200000"}),
    "aac": _Codec("aac", "adts", _AAC_RATES),
    "flac": _Codec("flac", "flac"),
}
FORMATS = (*_CODECS, "wav", "pcm")


class AudioEncoder(Protocol):
    """Encodes one channel of sound as the bytes of one file. Not thread-safe."""

    def add(self, samples: Samples, *, last: bool) -> bytes:
        """Writes float32 samples of shape (n,), from -1 to 1, and returns the bytes that are ready.

        With `last`, returns all remaining bytes.
        """
        ...


def encoder(form: str, rate: int, speed: float = 1.0) -> AudioEncoder:
    """Returns an encoder of sound at `rate` Hz to one of `FORMATS`, `speed` times as fast at the
    same pitch.

    `pcm` is signed 16-bit little-endian at `PCM_RATE`. `wav` and `flac` have 16 bits and the
    sound's own rate; the others have the nearest higher rate that they support. A `wav` of several
    pieces marks its length as unknown, with 0xFFFFFFFF in both places.
    """
    pieces = _Pieces(rate, speed)
    if form in _CODECS:
        return _Compressed(_CODECS[form], rate, pieces)
    return _Plain(rate, pieces, headed=form == "wav")


class _Pieces:
    """Sound at its speed, followed by silence if it is too short."""

    def __init__(self, rate: int, speed: float) -> None:
        self._tempo = Tempo(rate, speed)
        self._missing = rate // _SHORTEST

    def add(self, samples: Samples, *, last: bool) -> Iterator[Samples]:
        for piece in self._tempo.add(samples, last=last):
            self._missing -= piece.size
            yield piece
        if last and self._missing > 0:
            yield numpy.zeros(self._missing, numpy.float32)


class _Plain:
    """Uncompressed samples, with or without a WAV file's header."""

    def __init__(self, rate: int, pieces: _Pieces, *, headed: bool) -> None:
        self._rate = rate if headed else PCM_RATE
        self._pieces = pieces
        self._source = rate
        self._headed = headed
        self._resampler: Any = av.AudioResampler(format="s16", layout="mono", rate=self._rate)

    def add(self, samples: Samples, *, last: bool) -> bytes:
        pieces = [
            out
            for piece in self._pieces.add(samples, last=last)
            for out in self._resampler.resample(_frame(piece, self._source))
        ]
        if last:
            pieces += self._resampler.resample(None)
        content = b"".join(piece.to_ndarray().astype("<i2").tobytes() for piece in pieces)
        if not self._headed:
            return content
        self._headed = False
        return self._header(len(content) if last else None) + content

    def _header(self, size: int | None) -> bytes:
        """Returns the header of a RIFF file of one channel of 16-bit samples, as in
        https://www.mmsp.ece.mcgill.ca/Documents/AudioFormats/WAVE/WAVE.html
        """
        whole, data = (_UNKNOWN, _UNKNOWN) if size is None else (size + _HEADER, size)
        riff = struct.pack("<4sI4s", b"RIFF", whole, b"WAVE")
        form = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, self._rate, 2 * self._rate, 2, 16)
        return riff + form + struct.pack("<4sI", b"data", data)


class _Compressed:
    def __init__(self, codec: _Codec, rate: int, pieces: _Pieces) -> None:
        self._rate = rate
        self._pieces = pieces
        self._sink = _Sink()
        options = {"flush_packets": "1", **(codec.options or {})}
        # The sink cannot seek, so nothing is written that would need a later correction.
        self._file: Any = av.open(self._sink, "w", format=codec.container, options=options)
        self._stream = self._file.add_stream(codec.name, rate=codec.rate(rate), layout="mono")
        self._stream.bit_rate = _BIT_RATE
        self._written = 0

    def add(self, samples: Samples, *, last: bool) -> bytes:
        for piece in self._pieces.add(samples, last=last):
            self._mux(self._stream.encode(self._timed(piece)))
        if last:
            self._mux(self._stream.encode(None))
            self._file.close()
        return self._sink.take()

    def _timed(self, samples: Samples) -> Any:
        frame = _frame(samples, self._rate)
        frame.pts, frame.time_base = self._written, Fraction(1, self._rate)
        self._written += samples.size
        return frame

    def _mux(self, packets: Iterable[Any]) -> None:
        for packet in packets:
            self._file.mux(packet)


class _Sink:
    """Append-only file in memory."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def write(self, data: bytes) -> int:
        self._parts.append(bytes(data))
        return len(data)

    def take(self) -> bytes:
        """Returns the bytes written since the last call."""
        content = b"".join(self._parts)
        self._parts.clear()
        return content


def _frame(samples: Samples, rate: int) -> Any:
    frame: Any = av.AudioFrame.from_ndarray(samples[None], format="flt", layout="mono")
    frame.sample_rate = rate
    return frame
