"""Sounds with changed chunks, blocks and pages: inert content changes no sample.

A WAV's samples are compared with those of an independent reader.
"""

import io
import struct
from functools import cache
from typing import Any

import av
import numpy as np
from hypothesis import strategies as st

from stoker.base.media_limits import MediaLimits
from stoker.media.audio import decode
from stoker.media.errors import MediaError
from tests.fuzzing.support import fuzz, native_memory
from tests.fuzzing.test_images import Block, riff

RATE = 16_000
LIMITS = MediaLimits(audio_s=5)
SAMPLES = np.round(np.sin(np.arange(1600) / 7) * 2**14).astype("<i2")
CODECS = {"flac": "flac", "ogg": "libopus", "mp3": "libmp3lame", "mp4": "aac", "webm": "libopus"}
NUMBERS = st.sampled_from(
    [0, 1, 2, 3, 8, 16, 24, 255, 999, 65_534, 65_535, 768_001, 1 << 31, (1 << 32) - 1]
)
ID3 = b"ID3\x04\0\0\0\0\0\x0aTPE1\0\0\0\0\0\0"


def wav_blocks(channels: int = 1, bits: int = 16) -> list[Block]:
    frame = channels * bits // 8
    shape = struct.pack("<HHIIHH", 1, channels, RATE, RATE * frame, frame, bits)
    return [Block(b"fmt ", shape), Block(b"data", SAMPLES.tobytes())]


@cache
def encoded(container: str) -> bytes:
    rate = 48_000 if CODECS[container] == "libopus" else RATE
    frame = av.AudioFrame.from_ndarray(SAMPLES[None].copy(), format="s16", layout="mono")
    frame.sample_rate, frame.pts = rate, 0
    file = io.BytesIO()
    with av.open(file, "w", format=container) as out:
        stream: Any = out.add_stream(CODECS[container], rate=rate, layout="mono")
        out.mux([*stream.encode(frame), *stream.encode(None)])
    return file.getvalue()


def heard(data: bytes) -> np.ndarray[Any, Any] | None:
    with native_memory(data):
        try:
            samples = decode(data, RATE, LIMITS)
        except MediaError as error:
            assert error.message
            return None
    assert samples.dtype == np.float32
    assert samples.ndim == 1
    # Resampling may add a few samples.
    assert 0 < samples.size <= (LIMITS.audio_s + 0.1) * RATE
    assert np.isfinite(samples).all()
    return samples


EXTRA = st.sampled_from(
    [
        Block(b"LIST", b"INFOISFT\x04\0\0\0text"),
        Block(b"junk", b"odd"),
        Block(b"fact", b"\1\0\0\0"),
        Block(b"cue ", bytes(4)),
    ]
)


@st.composite
def wavs(draw: st.DrawFn) -> tuple[bytes, np.ndarray[Any, Any]]:
    """Draws a valid WAV with inert chunks in between, and its samples as floats."""
    channels, bits = draw(st.sampled_from([1, 2, 4])), draw(st.sampled_from([8, 16, 32]))
    blocks = wav_blocks(channels, bits)
    for at in (2, 1, 0):
        blocks[at:at] = draw(st.lists(EXTRA, max_size=2))
    whole = riff(b"WAVE", blocks)
    values = np.frombuffer(SAMPLES.tobytes(), {8: "u1", 16: "<i2", 32: "<i4"}[bits]).astype(
        np.float64
    )
    values = (values - 128) / 128 if bits == 8 else values / 2 ** (bits - 1)
    return whole, values.reshape(-1, channels).mean(axis=1)


@fuzz(wavs(), examples=40)
def test_the_samples_of_a_wav(case: tuple[bytes, np.ndarray[Any, Any]]) -> bool:
    data, samples = case
    decoded = heard(data)
    assert decoded is not None
    assert np.abs(decoded - samples).max() < 1e-6
    return True


@st.composite
def damaged_wavs(draw: st.DrawFn) -> bytes:
    blocks = wav_blocks(draw(st.sampled_from([1, 2, 8])))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, max(len(blocks) - 1, 0)))
        blocks[at : at + draw(st.integers(0, 1))] = draw(
            st.lists(EXTRA | st.sampled_from(wav_blocks()), max_size=2)
        )
    if draw(st.booleans()):
        shape = bytearray(wav_blocks()[0].data)
        for _ in range(draw(st.integers(1, 3))):
            at, width = draw(st.sampled_from([(0, 2), (2, 2), (4, 4), (8, 4), (12, 2), (14, 2)]))
            shape[at : at + width] = (draw(NUMBERS) % (1 << 8 * width)).to_bytes(width, "little")
        longer = bytes(shape) + draw(st.sampled_from([b"", b"\0\0", bytes(24)]))
        blocks = [Block(b"fmt ", longer), *[block for block in blocks if block.name != b"fmt "]]
    data = bytearray(riff(b"WAVE", blocks))
    if draw(st.integers(0, 2)) == 0:
        # Positions of the lengths.
        at = draw(st.sampled_from([4, 16, 40]))
        data[at : at + 4] = draw(NUMBERS).to_bytes(4, "little")
    return bytes(data[: draw(st.sampled_from([len(data), len(data), 20, 44, 45]))])


@fuzz(damaged_wavs(), examples=120)
def test_damaged_wavs(data: bytes) -> bool:
    return heard(data) is not None


@cache
def right(container: str) -> np.ndarray[Any, Any]:
    samples = heard(encoded(container))
    assert samples is not None
    return samples


def boxes(data: bytes) -> list[bytes]:
    """Returns the outermost boxes of an MP4."""
    result = []
    while data:
        size = int.from_bytes(data[:4], "big")
        result.append(data[:size])
        data = data[size:]
    return result


def box(name: bytes, content: bytes) -> bytes:
    return (8 + len(content)).to_bytes(4, "big") + name + content


@st.composite
def with_inert(draw: st.DrawFn) -> tuple[str, bytes]:
    """Draws a valid file with inert content that does not affect its sound."""
    container = draw(st.sampled_from(["flac", "mp3", "mp4"]))
    data, many = encoded(container), draw(st.integers(1, 3))
    filling = bytes(draw(st.sampled_from([0, 1, 9, 300])))
    if container == "flac":
        first = 4 + 4 + 34
        padding = b"\1" + len(filling).to_bytes(3, "big") + filling
        # Clears the flag of the first block that marks it as the last one.
        return container, data[:4] + bytes([data[4] & 0x7F]) + data[
            5:first
        ] + padding * many + data[first:]
    if container == "mp3":
        return container, ID3 + data
    parts = boxes(data)
    free = box(draw(st.sampled_from([b"free", b"skip", b"abcd"])), filling)
    # Appended after all boxes with positions that other boxes store.
    return container, b"".join([*parts, *[free] * many])


@fuzz(with_inert(), examples=30)
def test_what_is_inert_changes_no_sample(case: tuple[str, bytes]) -> bool:
    container, data = case
    decoded = heard(data)
    assert decoded is not None
    assert np.array_equal(decoded, right(container))
    return True


def places(container: str, data: bytes) -> list[int]:
    """Returns the positions of a file's structure: its marks, which precede numbers."""
    marks = {
        "flac": [b"fLaC", b"\xff\xf8", b"\xff\xf9"],
        "ogg": [b"OggS", b"OpusHead", b"OpusTags"],
        "mp3": [b"\xff\xfb", b"\xff\xf3", b"Xing", b"Info"],
        "mp4": [
            b"stsz",
            b"stts",
            b"stsc",
            b"stco",
            b"mdhd",
            b"elst",
            b"esds",
            b"mp4a",
            b"moov",
            b"trak",
            b"mvhd",
        ],
        "webm": [
            b"\x1a\x45\xdf\xa3",
            b"\x1f\x43\xb6\x75",
            b"\x16\x54\xae\x6b",
            b"\xae",
            b"\xe1",
            b"\xa3",
            b"\xb5",
        ],
    }[container]
    positions = [0]
    for mark in marks:
        at = data.find(mark)
        while at >= 0 and len(positions) < 40:
            positions.append(at)
            at = data.find(mark, at + 1)
    return positions


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    container = draw(st.sampled_from(sorted(CODECS)))
    data = encoded(container)
    where = places(container, data)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.sampled_from(where)) + draw(st.integers(-4, 24))
        at, width = max(at, 0), draw(st.sampled_from([1, 2, 4, 8]))
        if draw(st.integers(0, 2)):
            number = draw(NUMBERS) % (1 << 8 * width)
            data = (
                data[:at]
                + number.to_bytes(width, draw(st.sampled_from(["big", "little"])))
                + data[at + width :]
            )
            continue
        # The bytes from one mark to another are dropped, repeated or moved.
        begin, end = sorted([draw(st.sampled_from(where)), draw(st.sampled_from(where))])
        middle = draw(
            st.sampled_from(
                [b"", data[begin:end] * 2, data[end : 2 * end - begin] + data[begin:end]]
            )
        )
        data = (data[:begin] + middle + data[end:])[: 1 << 16]
    return data[: draw(st.integers(0, len(data)))] if draw(st.integers(0, 9)) == 0 else data


@fuzz(damaged(), examples=150)
def test_damaged_files(data: bytes) -> bool:
    return heard(data) is not None
