"""Frames of a video: selection, orientation, and refused inputs."""

import io
import struct
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import av
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.base.media_limits import MediaLimits
from stoker.media.errors import MediaError
from stoker.media.video import Frame, decode

LIMITS = MediaLimits()
WIDTH, HEIGHT = 48, 32
FILES = [
    ("mp4", "libx264", "yuv420p"), ("mp4", "libx265", "yuv420p"), ("mp4", "mpeg4", "yuv420p"),
    ("mov", "mjpeg", "yuvj420p"), ("webm", "libvpx", "yuv420p"),
    ("webm", "libvpx-vp9", "yuv420p"), ("webm", "libsvtav1", "yuv420p"),
    ("matroska", "libx264", "yuv420p"), ("avi", "mpeg4", "yuv420p"), ("avi", "mjpeg", "yuvj420p"),
    ("gif", "gif", "rgb24"),
]  # fmt: skip


def level(index: int) -> int:
    return 20 + 20 * index


def painted(index: int, width: int = WIDTH, height: int = HEIGHT) -> np.ndarray:
    """Returns a grey image that encodes the index, with a white corner at the top left."""
    image = np.full((height, width, 3), level(index), np.uint8)
    image[:16, :16] = 255
    return image


def encoded(
    container: str = "mp4",
    codec: str = "libx264",
    pixels: str = "yuv420p",
    *,
    frames: int = 10,
    times: Sequence[int] | None = None,
    size: tuple[int, int] = (WIDTH, HEIGHT),
    movflags: str = "",
    **options: str,
) -> bytes:
    """Returns a video of ten frames per second, or of frames at `times` in milliseconds."""
    file = io.BytesIO()
    flags = {"movflags": movflags} if movflags else {}
    with av.open(file, "w", format=container, options=flags) as out:
        stream: Any = out.add_stream(codec, rate=10, options=options)
        stream.width, stream.height = size
        stream.pix_fmt = "rgb8" if codec == "gif" else pixels
        if times is not None:
            stream.codec_context.time_base = Fraction(1, 1000)
        for index in range(frames):
            frame = av.VideoFrame.from_ndarray(painted(index, *size), "rgb24")
            frame.pts = index if times is None else times[index]
            frame.time_base = Fraction(1, 10 if times is None else 1000)
            out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
    return file.getvalue()


def turned(data: bytes, matrix: Sequence[int]) -> bytes:
    """Returns the MP4 with the a, b, c, d of its track's display matrix replaced."""
    a, b, c, d = (value << 16 for value in matrix)
    at = data.index(b"tkhd") + 44
    return data[:at] + struct.pack(">9i", a, b, 0, c, d, 0, 0, 0, 1 << 30) + data[at + 36 :]


def indices(frames: list[Frame]) -> list[int]:
    """Returns the indices of the frames, decoded from the grey of the lower right quarter."""
    levels = [float(frame[20:, 20:].mean()) for frame in frames]
    return [round((value - 20) / 20) for value in levels]


def pick(data: bytes, num_frames: int | None = None, rate: int | None = None) -> list[int]:
    return indices(decode(data, num_frames=num_frames, frame_sampling_rate=rate, limits=LIMITS))


class TestFormats:
    @pytest.mark.parametrize(("container", "codec", "pixels"), FILES)
    def test_every_frame_has_its_colour(self, container: str, codec: str, pixels: str) -> None:
        # x265 corrupts the heap when it encodes pictures smaller than its largest block, 64 x 64.
        data = encoded(container, codec, pixels, size=(64, 64))
        frames = decode(data, num_frames=None, frame_sampling_rate=None, limits=LIMITS)
        assert len(frames) == 10
        for index, frame in enumerate(frames):
            assert frame.shape == (64, 64, 3)
            assert frame.dtype == np.uint8
            # GIF has 8 levels of red and green and 4 of blue, dithered.
            slack = 45 if codec == "gif" else 8
            assert abs(frame[20:, 20:].mean() - level(index)) < slack
            assert frame[4:12, 4:12].mean() > 240

    def test_a_fragmented_mp4(self) -> None:
        assert pick(encoded(movflags="frag_keyframe+empty_moov")) == list(range(10))

    def test_a_memoryview_is_taken(self) -> None:
        frames = decode(
            memoryview(encoded()), num_frames=2, frame_sampling_rate=None, limits=LIMITS
        )
        assert indices(frames) == [0, 5]


class TestIndices:
    @pytest.mark.parametrize("num_frames", [1, 3, 4, 7, 10])
    def test_without_a_rate_the_whole_clip(self, num_frames: int) -> None:
        from transformers.video_utils import VideoMetadata, default_sample_indices_fn

        metadata = VideoMetadata(total_num_frames=10)
        expected = default_sample_indices_fn(metadata, num_frames=num_frames)
        assert pick(encoded(), num_frames) == expected.tolist()

    def test_a_short_clip_repeats_frames(self) -> None:
        data = encoded(frames=3)
        assert pick(data, 8) == [0, 0, 0, 1, 1, 1, 2, 2]
        frames = decode(data, num_frames=8, frame_sampling_rate=None, limits=LIMITS)
        assert frames[0] is frames[1]

    def test_one_frame(self) -> None:
        assert pick(encoded(frames=1), 4) == [0, 0, 0, 0]

    @pytest.mark.parametrize(("num_frames", "rate"), [(4, 1), (4, 2), (3, 3), (2, 5), (1, 7)])
    def test_with_a_rate_the_indices_of_the_pipeline(self, num_frames: int, rate: int) -> None:
        from transformers.pipelines.video_classification import read_video_pyav

        expected_indices = np.linspace(0, num_frames * rate - 1, num=num_frames, dtype=np.int64)
        data = encoded()
        with av.open(io.BytesIO(data)) as file:
            expected = read_video_pyav(file, expected_indices)
        frames = decode(data, num_frames=num_frames, frame_sampling_rate=rate, limits=LIMITS)
        assert np.array_equal(np.stack(frames), expected)

    @pytest.mark.parametrize("rate", [4, 1000, 10**30])
    def test_beyond_the_end_the_last_frame_repeats(self, rate: int) -> None:
        assert pick(encoded(), 4, rate)[-1] == 9

    def test_all_frames_at_a_rate(self) -> None:
        assert pick(encoded(), None, 4) == [0, 4, 8]

    def test_uneven_times_do_not_count(self) -> None:
        times = [0, 10, 20, 30, 40, 1000, 3000, 3010, 3020, 9000]
        for container in ("mp4", "matroska"):
            data = encoded(container, times=times)
            assert pick(data) == list(range(10))
            assert pick(data, 5) == [0, 2, 4, 6, 8]

    def test_packets_without_frames(self) -> None:
        """Some packets show no frame, as VP8's alternate references. The fourth bit of a frame's
        tag hides it.
        """
        data = encoded("webm", "libvpx")
        with av.open(io.BytesIO(data)) as file:
            packets = [bytes(packet) for packet in file.demux(video=0)]
        hidden = data.index(packets[2])
        data = data[:hidden] + bytes([data[hidden] & ~0x10]) + data[hidden + 1 :]
        shown = [0, 1, 3, 4, 5, 6, 7, 8, 9]
        assert pick(data) == shown
        assert pick(data, 10) == [0, *shown]
        assert pick(data, 3, 4) == [0, 6, 9]

    def test_a_cut_file_gives_what_it_holds(self) -> None:
        data = encoded("matroska", "mjpeg", "yuvj420p")
        picked = pick(data[: len(data) * 6 // 10], 4)
        assert len(picked) == 4
        assert max(picked) < 9


class TestUpright:
    @pytest.mark.parametrize(
        ("matrix", "rows_first", "corner"),
        [
            ((1, 0, 0, 1), True, (0, 0)),
            ((0, 1, -1, 0), False, (0, -1)),  # a quarter clockwise
            ((-1, 0, 0, -1), True, (-1, -1)),
            ((0, -1, 1, 0), False, (-1, 0)),
            ((-1, 0, 0, 1), True, (0, -1)),  # mirrored
            ((1, 0, 0, -1), True, (-1, 0)),
            ((0, 1, 1, 0), False, (0, 0)),
            ((0, -1, -1, 0), False, (-1, -1)),
        ],
    )
    def test_the_corner_is_where_it_belongs(
        self, matrix: tuple[int, ...], rows_first: bool, corner: tuple[int, int]
    ) -> None:
        data = turned(encoded(frames=1), matrix)
        [frame] = decode(data, num_frames=1, frame_sampling_rate=None, limits=LIMITS)
        assert frame.shape == ((HEIGHT, WIDTH, 3) if rows_first else (WIDTH, HEIGHT, 3))
        assert frame.flags.c_contiguous
        rows = [frame[2:8], frame[-8:-2]][corner[0]]
        assert rows[:, 2:8].mean() > 240 if corner[1] == 0 else rows[:, -8:-2].mean() > 240
        assert (frame.mean(axis=2) > 200).sum() < 20 * 20


@pytest.mark.case(11)
class TestRefused:
    def refusal(self, data: bytes, limits: MediaLimits = LIMITS, **options: Any) -> str:
        options = {"num_frames": None, "frame_sampling_rate": None} | options
        with pytest.raises(MediaError) as caught:
            decode(data, limits=limits, **options)
        return caught.value.message

    def test_more_pixels_than_the_limit(self) -> None:
        size = WIDTH * HEIGHT
        data = encoded()
        message = self.refusal(data, MediaLimits(image_pixels=size - 1))
        assert "more than 1,535 pixels per frame" in message
        for codec in ("libx264", "libvpx-vp9"):
            frames = decode(
                encoded("matroska", codec),
                num_frames=None,
                frame_sampling_rate=None,
                limits=MediaLimits(image_pixels=size),
            )
            assert len(frames) == 10

    def test_a_frame_larger_than_the_header(self) -> None:
        small = encoded("avi", "mjpeg", "yuvj420p", frames=1, size=(32, 32))
        large = encoded("avi", "mjpeg", "yuvj420p", frames=1, size=(64, 64))
        # The header and the first frame of the small video, then a frame of the large one.
        picture = large[large.index(b"00dc") : large.index(b"idx1")]
        end = small.index(b"idx1")
        data = bytearray(small[:end] + picture)
        data[4:8] = struct.pack("<I", len(data) - 8)
        movi = data.index(b"movi") - 4
        data[movi : movi + 4] = struct.pack("<I", len(data) - movi - 4)
        assert self.refusal(bytes(data)) == "The video changes its frame size."
        self.refusal(bytes(data), MediaLimits(image_pixels=32 * 32))

    def test_more_frames_than_the_limit(self) -> None:
        limits = MediaLimits(video_frames=9)
        assert "more than 9 frames" in self.refusal(encoded(), limits)
        assert "must be 1 to 9" in self.refusal(encoded(), limits, num_frames=10)

    def test_more_pixels_in_all_than_the_limit(self) -> None:
        limits = MediaLimits(video_pixels=3 * WIDTH * HEIGHT)
        data = encoded()
        assert len(decode(data, num_frames=3, frame_sampling_rate=None, limits=limits)) == 3
        assert "4,608 pixels in total" in self.refusal(data, limits, num_frames=4)

    def test_longer_than_the_limit(self) -> None:
        data = encoded()
        limits = MediaLimits(video_s=0.9)
        assert len(decode(data, num_frames=2, frame_sampling_rate=None, limits=limits)) == 2
        message = self.refusal(data, MediaLimits(video_s=0.8), num_frames=2)
        assert message == "The video is longer than 0.8 seconds."

    def test_an_absurd_duration(self) -> None:
        data = bytearray(encoded())
        at = data.index(b"mdhd") + 16  # time scale in ticks per second
        data[at : at + 4] = struct.pack(">I", 1)
        assert "longer than 600 seconds" in self.refusal(bytes(data), num_frames=2)

    def test_an_absurd_duration_in_the_header_alone_is_ignored(self) -> None:
        data = bytearray(encoded())
        for box in (b"mvhd", b"mdhd"):
            at = data.index(box) + 20
            data[at : at + 4] = b"\x7f\xff\xff\xff"
        assert pick(bytes(data), 2) == [0, 5]

    def test_more_work_than_the_limit(self) -> None:
        # Ten frames of 2 megapixels within nine tenths of a second. One of them is kept.
        data = encoded("mp4", "mpeg4", size=(1600, 1280), times=range(10))
        message = self.refusal(data, MediaLimits(video_s=0.05), num_frames=8)
        assert "too many frames for its size" in message

    def test_countless_frames(self) -> None:
        data = encoded("gif", "gif", frames=1)
        image = data.index(b"!\xf9\x04")
        frame = data[image:-1]
        many = data[:image] + frame * 3000 + b";"
        assert "more than 512 frames" in self.refusal(many)
        assert len(decode(many, num_frames=4, frame_sampling_rate=None, limits=LIMITS)) == 4

    def test_a_table_of_countless_frames(self) -> None:
        data = bytearray(encoded(movflags="frag_keyframe+empty_moov"))
        at = data.index(b"trun") + 4
        data[at : at + 8] = struct.pack(">II", 0, 1 << 27)
        assert "declares more samples" in self.refusal(bytes(data))

    @pytest.mark.parametrize("numbers", [(0, None), (-1, None), (513, None), (4, 0), (4, -2)])
    def test_numbers_out_of_bounds(self, numbers: tuple[int, int | None]) -> None:
        num_frames, rate = numbers
        assert "must be" in self.refusal(encoded(), num_frames=num_frames, frame_sampling_rate=rate)

    def test_no_video(self) -> None:
        file = io.BytesIO()
        with av.open(file, "w", format="mp4") as out:
            stream: Any = out.add_stream("aac", rate=48_000, layout="mono")
            frame = av.AudioFrame.from_ndarray(np.zeros((1, 4800), np.float32), "fltp", "mono")
            frame.sample_rate = 48_000
            out.mux([*stream.encode(frame), *stream.encode(None)])
        assert self.refusal(file.getvalue()) == "The file holds no video."

    def test_no_frames(self) -> None:
        data = encoded("webm", "libvpx")
        cluster = data.index(b"\x1f\x43\xb6\x75")
        self.refusal(data[: cluster + 12])

    @pytest.mark.parametrize("container", ["mpegts", "flv", "ogg"])
    def test_other_formats(self, container: str) -> None:
        codec = "libvpx" if container == "ogg" else "libx264"
        assert "unsupported format" in self.refusal(encoded(container, codec))

    def test_other_codecs(self) -> None:
        self.refusal(encoded("matroska", "ffv1"))
        self.refusal(encoded("mov", "png", "rgb24"))

    @pytest.mark.parametrize(
        "data",
        [
            b"",
            b"#EXTM3U\n#EXTINF:1,\nfile:x.mp4\n",
            b"ffconcat version 1.0\nfile 'x.mp4'\n",
            b"v=0\no=- 0 0 IN IP4 127.0.0.1\n",
            b"<svg xmlns='http://www.w3.org/2000/svg'/>",
            b"\0\0\0\x20ftypavif\0\0\0\0avifmif1",
        ],
    )
    def test_what_is_no_video(self, data: bytes) -> None:
        assert self.refusal(data) == (
            "The video has an unsupported format. Supported formats: AVI, GIF, MP4, M4A and MOV, "
            "Matroska and WebM."
        )

    @pytest.mark.parametrize("container", ["mp4", "webm", "avi", "gif"])
    @settings(max_examples=25, deadline=None)
    @given(data=st.data())
    def test_damage_raises_nothing_else(self, container: str, data: st.DataObject) -> None:
        _, codec, pixels = next(file for file in FILES if file[0] == container)
        file = bytearray(encoded(container, codec, pixels, frames=4))
        for _ in range(data.draw(st.integers(0, 3))):
            file[data.draw(st.integers(0, len(file) - 1))] = data.draw(st.integers(0, 255))
        cut = data.draw(st.integers(0, len(file)))
        limits = MediaLimits(image_pixels=1_000_000)
        try:
            frames = decode(
                bytes(file[:cut]), num_frames=3, frame_sampling_rate=None, limits=limits
            )
            assert len(frames) == 3
        except MediaError as error:
            assert error.message
