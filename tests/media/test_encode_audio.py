import io
from collections.abc import Sequence

import av
import numpy
import pytest

from stoker.base.media_limits import MediaLimits
from stoker.inference.openai.speech import CONTENT_TYPES
from stoker.media import audio
from stoker.media.encode_audio import FORMATS, PCM_RATE, encoder

RATE = 22_050
SECONDS = 3
HZ = 440
TONE = (0.5 * numpy.sin(2 * numpy.pi * HZ * numpy.arange(SECONDS * RATE) / RATE)).astype(
    numpy.float32
)
LSB = 1 / 32768
MAGIC = {"mp3": b"\xff", "opus": b"OggS", "aac": b"\xff", "flac": b"fLaC", "wav": b"RIFF"}


def written(form: str, sound: audio.Samples, rate: int, speed: float = 1, pieces: int = 4):
    """Returns the bytes after each piece."""
    made = encoder(form, rate, speed)
    parts = numpy.array_split(sound, pieces)
    return [made.add(part, last=at == pieces - 1) for at, part in enumerate(parts)]


def read(form: str, parts: Sequence[bytes], rate: int) -> audio.Samples:
    content = b"".join(parts)
    if form == "pcm":
        samples = numpy.frombuffer(content, "<i2").astype(numpy.float32) * LSB
        return audio.from_samples(samples, PCM_RATE, rate, MediaLimits())
    return audio.decode(content, rate, MediaLimits())


def pitch(sound: audio.Samples, rate: int) -> float:
    spectrum = numpy.abs(numpy.fft.rfft(sound * numpy.hanning(len(sound))))
    return float(spectrum.argmax() * rate / len(sound))


def test_the_gateway_knows_the_same_formats() -> None:
    assert set(FORMATS) == set(CONTENT_TYPES)


@pytest.mark.parametrize("form", FORMATS)
class TestFormats:
    def test_one_file_of_many_pieces(self, form: str) -> None:
        parts = written(form, TONE, RATE)
        assert all(parts), "each piece gives bytes"
        assert parts[0].startswith(MAGIC.get(form, b""))
        decoded = read(form, parts, RATE)
        assert len(decoded) / RATE == pytest.approx(SECONDS, abs=0.1)
        assert pitch(decoded, RATE) == pytest.approx(HZ, abs=1)
        # No gap and no click between pieces: a sine has no steps.
        middle = decoded[RATE // 2 : -RATE // 2]
        assert numpy.abs(numpy.diff(middle, 2)).max() < 0.03

    @pytest.mark.parametrize("speed", [0.25, 0.4, 1.5, 3.0, 4.0])
    def test_speed_keeps_the_pitch(self, form: str, speed: float) -> None:
        decoded = read(form, written(form, TONE, RATE, speed), RATE)
        assert len(decoded) / RATE == pytest.approx(SECONDS / speed, rel=0.01, abs=0.1)
        assert pitch(decoded, RATE) == pytest.approx(HZ, abs=2)
        assert 0.4 < numpy.abs(decoded).max() < 0.6

    @pytest.mark.parametrize("speed", [0.25, 1.5, 4.0])
    @pytest.mark.parametrize("samples", [64, 700, 1500])
    def test_speed_of_a_short_sound(self, form: str, samples: int, speed: float) -> None:
        """The sound is shorter than the windows of the tempo change: 46 ms of this sound."""
        parts = written(form, TONE[:samples], RATE, speed, pieces=2)
        decoded = read(form, parts, RATE)
        expected_length = max(samples / speed, 0.01 * RATE)
        if form in ("wav", "flac", "pcm"):
            assert len(decoded) == pytest.approx(expected_length, abs=2)
        else:
            # The frames of other formats are longer.
            assert expected_length - 1 <= len(decoded) <= expected_length + 0.15 * RATE
        assert numpy.abs(decoded).max() > 0.2, "it sounds"

    @pytest.mark.parametrize("rate", [8_000, 11_111, 16_000, 44_100, 96_000])
    def test_rates(self, form: str, rate: int) -> None:
        sound = TONE[: rate // 2]
        decoded = read(form, written(form, sound, rate), rate)
        assert len(decoded) / rate == pytest.approx(len(sound) / rate, abs=0.15)

    def test_one_short_sound(self, form: str) -> None:
        decoded = read(form, written(form, TONE[:50], RATE, pieces=1), RATE)
        assert len(decoded) >= 50


class TestExact:
    @pytest.mark.parametrize(("form", "rate"), [("wav", 16_000), ("flac", 16_000), ("pcm", 24_000)])
    def test_what_loses_nothing(self, form: str, rate: int) -> None:
        noise = numpy.random.default_rng(0).uniform(-1, 1, 5_000).astype(numpy.float32)
        decoded = read(form, written(form, noise, rate), rate)
        assert decoded.shape == noise.shape
        assert numpy.abs(decoded - noise).max() <= LSB


class TestWav:
    def test_whole(self) -> None:
        (content,) = written("wav", TONE, RATE, pieces=1)
        assert int.from_bytes(content[4:8], "little") == len(content) - 8
        assert int.from_bytes(content[40:44], "little") == len(content) - 44

    def test_in_pieces(self) -> None:
        content = b"".join(written("wav", TONE, RATE))
        assert content[4:8] == content[40:44] == b"\xff" * 4
        with av.open(io.BytesIO(content)) as file:
            assert sum(frame.samples for frame in file.decode(audio=0)) == len(TONE)
