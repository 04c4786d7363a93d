"""Sound from bytes and numbers: values, rates and lengths, and refused inputs."""

import io
import socket
import struct
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.base.media_limits import MediaLimits
from stoker.media.audio import decode, from_samples
from stoker.media.errors import MediaError

LIMITS = MediaLimits()
FILES = [
    ("wav", "pcm_u8", 44_100), ("wav", "pcm_s16le", 44_100), ("wav", "pcm_s24le", 44_100),
    ("wav", "pcm_s32le", 44_100), ("wav", "pcm_f32le", 44_100), ("wav", "pcm_f64le", 44_100),
    ("wav", "pcm_mulaw", 8_000), ("flac", "flac", 44_100), ("ogg", "libopus", 48_000),
    ("ogg", "vorbis", 44_100), ("ogg", "flac", 44_100), ("mp3", "libmp3lame", 44_100),
    ("mp4", "aac", 44_100), ("ipod", "aac", 48_000), ("mov", "pcm_s16le", 44_100),
    ("adts", "aac", 44_100), ("webm", "libopus", 48_000), ("matroska", "flac", 44_100),
]  # fmt: skip


def tone(rate: int, seconds: float = 0.5, amplitudes: tuple[float, ...] = (0.5,)) -> np.ndarray:
    """Returns a tone of 440 Hz with the shape (channels, samples)."""
    time = np.arange(int(rate * seconds)) / rate
    return np.outer(amplitudes, np.sin(2 * np.pi * 440 * time)).astype(np.float32)


def encoded(container: str, codec: str, samples: np.ndarray, rate: int) -> bytes:
    layout = {1: "mono", 2: "stereo", 6: "5.1", 8: "7.1", 16: "hexadecagonal"}[len(samples)]
    frame = av.AudioFrame.from_ndarray(
        np.ascontiguousarray(samples.T).reshape(1, -1), format="flt", layout=layout
    )
    frame.sample_rate, frame.pts = rate, 0
    file = io.BytesIO()
    with av.open(file, "w", format=container) as out:
        stream: Any = out.add_stream(codec, rate=rate, layout=layout)
        stream.codec_context.options = {"strict": "experimental"}
        out.mux([*stream.encode(frame), *stream.encode(None)])
    return file.getvalue()


def measured(samples: np.ndarray, rate: int) -> tuple[float, float]:
    """Returns the frequency in Hz and the amplitude of the loudest tone, away from the ends."""
    middle = samples[len(samples) // 8 : -len(samples) // 8]
    window = np.hanning(len(middle))
    spectrum = np.abs(np.fft.rfft(middle * window, 1 << 18))
    peak = int(spectrum.argmax())
    return peak * rate / (1 << 18), 2 * spectrum[peak] / window.sum()


class TestDecode:
    @pytest.mark.parametrize(("container", "codec", "rate"), FILES)
    def test_every_format_keeps_the_tone(self, container: str, codec: str, rate: int) -> None:
        data = encoded(container, codec, tone(rate, amplitudes=(0.5, 0.25)), rate)
        for sampling_rate in (16_000, 48_000):
            samples = decode(data, sampling_rate, LIMITS)
            assert samples.dtype == np.float32
            assert samples.ndim == 1
            # These two keep the silence that their encoder adds. The others are exact.
            slack = sampling_rate / 25 if codec in ("aac", "vorbis") else 40
            assert abs(len(samples) - sampling_rate / 2) <= slack
            frequency, amplitude = measured(samples, sampling_rate)
            assert frequency == pytest.approx(440, abs=1)
            # LAME encodes everything at 95 %.
            level = 0.375 * (0.95 if container == "mp3" else 1)
            assert amplitude == pytest.approx(level, rel=0.03)

    @pytest.mark.parametrize(
        ("codec", "step"),
        [("pcm_s16le", 2**-15), ("pcm_s24le", 2**-23), ("pcm_f32le", 0), ("pcm_f64le", 0)],
    )
    def test_the_own_rate_is_not_resampled(self, codec: str, step: float) -> None:
        wave = tone(16_000)
        samples = decode(encoded("wav", codec, wave, 16_000), 16_000, LIMITS)
        assert np.abs(samples - wave[0]).max() <= step

    def test_full_scale_of_every_width(self) -> None:
        levels = np.array([[-1, 0, 0.5]], np.float32)
        for codec in ("pcm_u8", "pcm_s16le", "pcm_s24le", "pcm_s32le", "pcm_f64le"):
            samples = decode(encoded("wav", codec, levels, 16_000), 16_000, LIMITS)
            assert samples.tolist() == [-1, 0, 0.5], codec

    @pytest.mark.parametrize("channels", [1, 2, 6, 8, 16])
    def test_channels_are_averaged(self, channels: int) -> None:
        levels = np.repeat(np.linspace(0, 0.5, channels, dtype=np.float32)[:, None], 1000, 1)
        samples = decode(encoded("wav", "pcm_f32le", levels, 16_000), 16_000, LIMITS)
        assert np.allclose(samples, levels.mean(axis=0), atol=1e-6)

    @pytest.mark.parametrize("channels", [6, 8, 16])
    def test_many_channels_in_planes(self, channels: int) -> None:
        wave = tone(48_000, amplitudes=(0.5,) * channels)
        samples = decode(encoded("mp4", "aac", wave, 48_000), 16_000, LIMITS)
        frequency, _ = measured(samples, 16_000)
        assert frequency == pytest.approx(440, abs=1)

    def test_the_sound_of_a_video(self) -> None:
        file = io.BytesIO()
        with av.open(file, "w", format="mp4") as out:
            video: Any = out.add_stream("libx264", rate=10)
            video.width = video.height = 32
            audio: Any = out.add_stream("aac", rate=48_000, layout="mono")
            for _ in range(5):
                out.mux(video.encode(av.VideoFrame(32, 32, "yuv420p")))
            frame = av.AudioFrame.from_ndarray(tone(48_000), format="fltp", layout="mono")
            frame.sample_rate = 48_000
            out.mux([*audio.encode(frame), *audio.encode(None), *video.encode(None)])
        frequency, _ = measured(decode(file.getvalue(), 16_000, LIMITS), 16_000)
        assert frequency == pytest.approx(440, abs=1)

    def test_mp3_between_tags(self) -> None:
        data = encoded("mp3", "libmp3lame", tone(44_100), 44_100)
        bare = data[data.index(b"\xff\xfb") :]
        tagged = data + b"TAG" + b"\0" * 125
        lengths = [len(decode(file, 44_100, LIMITS)) for file in (data, tagged, bare)]
        assert lengths[0] == 22_050
        assert max(lengths) - min(lengths) < 3 * 1152

    @pytest.mark.parametrize("container", ["mp3", "adts"])
    def test_what_is_no_sound_in_a_bare_stream_is_skipped(self, container: str) -> None:
        codec = "libmp3lame" if container == "mp3" else "aac"
        data = encoded(container, codec, tone(44_100), 44_100)
        whole = decode(data, 44_100, LIMITS)
        for tail in (bytes(5_000), b"garbage " * 100):
            samples = decode(data + tail, 44_100, LIMITS)
            assert abs(len(samples) - len(whole)) <= 2 * 1152
            assert np.array_equal(samples[:20_000], whole[:20_000])
        assert 0 < len(decode(data[: len(data) // 2], 44_100, LIMITS)) < len(whole)

    @pytest.mark.parametrize("container", ["flac", "mp4"])
    def test_half_a_file_with_a_table_is_refused(self, container: str) -> None:
        data = encoded(container, "flac" if container == "flac" else "aac", tone(44_100), 44_100)
        with pytest.raises(MediaError):
            decode(data[: len(data) // 2 + 1], 16_000, LIMITS)

    def test_flac_behind_a_tag(self) -> None:
        wave = tone(16_000)
        data = b"ID3\x04\0\0\0\0\0\x0a" + b"\0" * 10 + encoded("flac", "flac", wave, 16_000)
        assert len(decode(data, 16_000, LIMITS)) == wave.size

    def test_wav_with_a_length_that_lies(self) -> None:
        wave = tone(16_000)
        data = bytearray(encoded("wav", "pcm_s16le", wave, 16_000))
        at = data.index(b"data") + 4
        for length in (0xFFFFFFFF, 0x7FFFFFFF, 0):
            data[at : at + 4] = struct.pack("<I", length)
            samples = decode(bytes(data), 16_000, LIMITS)
            assert len(samples) == wave.size

    def test_a_memoryview_is_taken(self) -> None:
        data = encoded("wav", "pcm_s16le", tone(16_000), 16_000)
        assert np.array_equal(
            decode(memoryview(data), 16_000, LIMITS), decode(data, 16_000, LIMITS)
        )


@pytest.mark.case(11)
class TestRefused:
    @pytest.mark.parametrize("codec", ["pcm_s16le", "flac"])
    def test_longer_than_the_limit(self, codec: str) -> None:
        container = "flac" if codec == "flac" else "wav"
        data = encoded(container, codec, tone(16_000, 0.5), 16_000)
        assert len(decode(data, 16_000, MediaLimits(audio_s=0.5))) == 8_000
        with pytest.raises(MediaError, match=r"longer than 0\.49 seconds"):
            decode(data, 16_000, MediaLimits(audio_s=0.49))

    def test_a_short_length_in_the_header_hides_nothing(self) -> None:
        data = bytearray(encoded("flac", "flac", tone(16_000, 0.5), 16_000))
        data[22:26] = struct.pack(">I", 10)  # low bits of STREAMINFO's number of samples
        with pytest.raises(MediaError):
            decode(bytes(data), 16_000, MediaLimits(audio_s=0.1))

    def test_more_samples_than_the_limit(self) -> None:
        silence = np.zeros((8, 9_600), np.float32)
        data = encoded("wav", "pcm_u8", silence, 96_000)
        with pytest.raises(MediaError, match="more samples"):
            decode(data, 16_000, MediaLimits(audio_s=0.15))

    @pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
    @pytest.mark.parametrize("sampling_rate", [16_000, 8_000])
    def test_numbers_that_are_not_finite(self, value: float, sampling_rate: int) -> None:
        wave = tone(16_000)
        wave[0, 4_000] = value
        data = encoded("wav", "pcm_f32le", wave, 16_000)
        with pytest.raises(MediaError, match="not finite"):
            decode(data, sampling_rate, LIMITS)

    def test_a_double_beyond_a_float(self) -> None:
        data = bytearray(encoded("wav", "pcm_f64le", tone(16_000), 16_000))
        data[-8:] = struct.pack("<d", 1e300)
        with pytest.raises(MediaError, match="not finite"):
            decode(bytes(data), 16_000, LIMITS)

    def test_an_empty_sound(self) -> None:
        data = encoded("wav", "pcm_s16le", tone(16_000), 16_000)
        with pytest.raises(MediaError):
            decode(data[: data.index(b"data") + 8], 16_000, LIMITS)

    @pytest.mark.parametrize("rate", [999, 768_001])
    def test_a_rate_out_of_bounds(self, rate: int) -> None:
        data = bytearray(encoded("wav", "pcm_s16le", tone(16_000), 16_000))
        data[24:28] = struct.pack("<I", rate)
        with pytest.raises(MediaError, match="1000 to 768000 Hz"):
            decode(bytes(data), 16_000, LIMITS)

    def test_a_table_of_countless_samples(self) -> None:
        data = bytearray(encoded("mp4", "aac", tone(44_100), 44_100))
        at = data.index(b"stsz") + 8
        data[at : at + 8] = struct.pack(">II", 1, 100_000_000)
        with pytest.raises(MediaError, match="declares more samples"):
            decode(bytes(data), 16_000, LIMITS)

    def test_a_video_without_sound(self) -> None:
        file = io.BytesIO()
        with av.open(file, "w", format="mp4") as out:
            video: Any = out.add_stream("libx264", rate=10)
            video.width = video.height = 32
            out.mux([*video.encode(av.VideoFrame(32, 32, "yuv420p")), *video.encode(None)])
        with pytest.raises(MediaError, match="no audio"):
            decode(file.getvalue(), 16_000, LIMITS)

    @pytest.mark.parametrize("container", ["au", "aiff", "caf", "mpegts", "w64"])
    def test_other_formats(self, container: str) -> None:
        codec = {"aiff": "pcm_s16be", "au": "pcm_s16be", "mpegts": "aac"}.get(container)
        data = encoded(container, codec or "pcm_s16le", tone(44_100), 44_100)
        with pytest.raises(MediaError, match="unsupported format"):
            decode(data, 16_000, LIMITS)

    def test_other_codecs(self) -> None:
        data = encoded("matroska", "ac3", tone(48_000), 48_000)
        with pytest.raises(MediaError):
            decode(data, 16_000, LIMITS)

    @pytest.mark.parametrize("container", ["wav", "flac", "ogg", "mp3", "mp4", "adts", "webm"])
    @settings(max_examples=30, deadline=None)
    @given(data=st.data())
    def test_damage_raises_nothing_else(self, container: str, data: st.DataObject) -> None:
        _, codec, rate = next(file for file in FILES if file[0] == container)
        file = bytearray(encoded(container, codec, tone(rate, 0.1), rate))
        for _ in range(data.draw(st.integers(0, 3))):
            file[data.draw(st.integers(0, len(file) - 1))] = data.draw(st.integers(0, 255))
        cut = data.draw(st.integers(0, len(file)))
        try:
            assert np.isfinite(decode(bytes(file[:cut]), 16_000, LIMITS)).all()
        except MediaError as error:
            assert error.message


@pytest.mark.case(10)
class TestNothingElseIsOpened:
    """A file that refers to others opens none of them. The others are real and valid, so opening
    one would be noticed.
    """

    @pytest.fixture
    def listener(self) -> Any:
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.setblocking(False)
            yield server
            with pytest.raises(BlockingIOError):
                server.accept()

    @pytest.fixture
    def targets(self, tmp_path: Path, listener: socket.socket) -> list[str]:
        sound = tmp_path / "sound.wav"
        sound.write_bytes(encoded("wav", "pcm_s16le", tone(16_000), 16_000))
        return [str(sound), f"file:{sound}", f"http://127.0.0.1:{listener.getsockname()[1]}/a.wav"]

    @pytest.mark.parametrize(
        "text",
        [
            "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n{0}\n#EXT-X-ENDLIST\n",
            "ffconcat version 1.0\nfile '{0}'\n",
            "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nm=audio 5004 RTP/AVP 0\n"
            "a=control:{0}\n",
            "<svg xmlns='http://www.w3.org/2000/svg'><image href='{0}'/></svg>",
            "<?xml version='1.0'?><MPD><Period><BaseURL>{0}</BaseURL></Period></MPD>",
            "{0}",
        ],
    )
    def test_playlists(self, text: str, targets: list[str]) -> None:
        for target in targets:
            for prefix in (b"", b"ID3\x04\0\0\0\0\0\0", b"\xff\xfb\x90\x00", b"OggS", b"fLaC"):
                with pytest.raises(MediaError):
                    decode(prefix + text.format(target).encode(), 16_000, LIMITS)

    def test_a_quicktime_reference(self, targets: list[str]) -> None:
        wave = tone(8_000, 1.0)
        data = encoded("mov", "pcm_s16le", wave, 8_000)
        for target in targets:
            samples = decode(referring(data, target.encode()), 8_000, LIMITS)
            assert np.abs(samples - wave[0]).max() <= 2**-15


def referring(data: bytes, target: bytes) -> bytes:
    """Returns a QuickTime file with a reference to another file for its samples."""
    at = data.index(b"url \0\0\0\1") - 4
    entry = struct.pack(">I4sI", 13 + len(target), b"url ", 0) + target + b"\0"
    changed = bytearray(data[:at] + entry + data[at + 12 :])
    for parent in (b"moov", b"trak", b"mdia", b"minf", b"dinf", b"dref"):
        size = changed.rindex(parent, 0, at) - 4
        length = int.from_bytes(changed[size : size + 4], "big") + len(entry) - 12
        changed[size : size + 4] = struct.pack(">I", length)
    return bytes(changed)


class TestFromSamples:
    def test_the_own_rate_is_kept(self) -> None:
        wave = tone(16_000)[0]
        assert np.array_equal(from_samples(wave, 16_000, 16_000, LIMITS), wave)
        assert np.array_equal(from_samples(wave.tobytes(), 16_000, 16_000, LIMITS), wave)

    @pytest.mark.parametrize("rate", [8_000, 11_025, 44_100, 192_000])
    def test_other_rates_keep_the_tone(self, rate: int) -> None:
        samples = from_samples(tone(rate, 1.0)[0], rate, 16_000, LIMITS)
        assert abs(len(samples) - 16_000) <= 2
        frequency, amplitude = measured(samples, 16_000)
        assert frequency == pytest.approx(440, abs=1)
        assert amplitude == pytest.approx(0.5, rel=0.01)

    def test_resampling_does_not_shift(self) -> None:
        samples = from_samples(tone(48_000, 0.5)[0], 48_000, 16_000, LIMITS)
        expected = tone(16_000, 0.5)[0]
        assert np.abs(samples[100:7_900] - expected[100:7_900]).max() < 1e-3

    def test_whole_numbers_are_taken_as_they_are(self) -> None:
        assert from_samples(np.array([0, 1, -1]), 16_000, 16_000, LIMITS).tolist() == [0, 1, -1]

    @pytest.mark.parametrize(
        ("samples", "match"),
        [
            (np.zeros(0, np.float32), "empty"),
            (b"", "empty"),
            (np.zeros((), np.float32), "one channel"),
            (b"abc", "could not be decoded"),
            (np.zeros((2, 10), np.float32), "one channel"),
            (np.array([0, np.nan] * 100), "not finite"),
            (np.array([0, np.inf] * 100), "not finite"),
            (np.array([0, 1e300] * 100), "not finite"),
        ],
    )
    @pytest.mark.parametrize("rate", [16_000, 8_000])
    def test_refused(self, samples: Any, match: str, rate: int) -> None:
        with pytest.raises(MediaError, match=match):
            from_samples(samples, rate, 16_000, LIMITS)

    @pytest.mark.parametrize("rate", [0, -1, 999, 768_001, 10**30])
    def test_a_rate_out_of_bounds(self, rate: int) -> None:
        with pytest.raises(MediaError, match="1000 to 768000 Hz"):
            from_samples(np.zeros(10, np.float32), rate, 16_000, LIMITS)

    def test_longer_than_the_limit(self) -> None:
        with pytest.raises(MediaError, match="longer than 1 seconds"):
            from_samples(np.zeros(8_001, np.float32), 8_000, 16_000, MediaLimits(audio_s=1))
