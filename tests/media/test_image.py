"""Images from bytes: the model's view, and refused inputs."""

import base64
import io
import struct
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from transformers.image_utils import load_image

from stoker.base.media_limits import MediaLimits
from stoker.media.errors import MediaError
from stoker.media.image import FORMATS, decode

LIMITS = MediaLimits()
RED, GREEN, BLUE, WHITE = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255)


def saved(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def reference(data: bytes) -> np.ndarray:
    return np.asarray(load_image(base64.b64encode(data).decode()))


def noise(mode: str, width: int = 16, height: int = 8) -> Image.Image:
    channels = len(Image.new(mode, (1, 1)).getbands())
    values = np.random.default_rng(0).integers(0, 256, (height, width, channels), np.uint8)
    return Image.frombytes(mode, (width, height), values.tobytes())


def png_header(width: int, height: int) -> bytes:
    chunk = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    head = struct.pack(">I", 13) + chunk + struct.pack(">I", zlib.crc32(chunk))
    body = b"IDAT" + zlib.compress(b"\0" * 64)
    return (
        b"\x89PNG\r\n\x1a\n"
        + head
        + struct.pack(">I", len(body) - 4)
        + body
        + struct.pack(">I", zlib.crc32(body))
    )


class TestParity:
    @pytest.mark.parametrize("kind", FORMATS)
    def test_every_format_equals_load_image(self, kind: str) -> None:
        data = saved(noise("RGB"), kind)
        image = decode(data, LIMITS)
        assert image.mode == "RGB"
        assert np.array_equal(np.asarray(image), reference(data))

    @pytest.mark.parametrize(
        ("mode", "kind"),
        [("L", "PNG"), ("P", "GIF"), ("CMYK", "JPEG"), ("CMYK", "TIFF"), ("YCbCr", "JPEG")],
    )
    def test_every_mode_without_alpha_equals_load_image(self, mode: str, kind: str) -> None:
        image = noise("RGB").quantize(8) if mode == "P" else noise(mode)
        data = saved(image, kind)
        assert np.array_equal(np.asarray(decode(data, LIMITS)), reference(data))

    def test_one_bit(self) -> None:
        data = saved(noise("L").convert("1"))
        assert np.array_equal(np.asarray(decode(data, LIMITS)), reference(data))

    def test_opaque_alpha_equals_load_image(self) -> None:
        image = noise("RGB").convert("RGBA")
        data = saved(image)
        assert np.array_equal(np.asarray(decode(data, LIMITS)), reference(data))

    def test_a_memoryview_is_taken(self) -> None:
        data = saved(noise("RGB"))
        assert decode(memoryview(data), LIMITS).tobytes() == decode(data, LIMITS).tobytes()

    def test_a_colour_profile_changes_nothing(self) -> None:
        from PIL import ImageCms

        profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("LAB")).tobytes()
        image = noise("RGB")
        assert decode(saved(image, icc_profile=profile), LIMITS).tobytes() == image.tobytes()


class TestOrientation:
    @pytest.mark.parametrize(
        ("orientation", "corner"),
        [
            (1, (0, 0)), (2, (5, 0)), (3, (5, 3)), (4, (0, 3)),
            (5, (0, 0)), (6, (3, 0)), (7, (3, 5)), (8, (0, 5)),
        ],
    )  # fmt: skip
    def test_the_corner_pixel_is_where_it_belongs(
        self, orientation: int, corner: tuple[int, int]
    ) -> None:
        image = Image.new("RGB", (6, 4), BLUE)
        image.putpixel((0, 0), RED)
        exif = Image.Exif()
        exif[0x0112] = orientation
        for kind in ("PNG", "TIFF"):
            decoded = decode(saved(image, kind, exif=exif), LIMITS)
            assert decoded.size == ((4, 6) if orientation > 4 else (6, 4))
            assert decoded.getpixel(corner) == RED
            assert np.asarray(decoded)[..., 0].sum() == 255


class TestTransparency:
    def test_lies_on_white(self) -> None:
        image = Image.new("RGBA", (3, 1), (*RED, 255))
        image.putpixel((1, 0), (0, 0, 0, 0))
        image.putpixel((2, 0), (0, 0, 0, 128))
        decoded = decode(saved(image), LIMITS)
        assert [decoded.getpixel((x, 0)) for x in range(3)] == [RED, WHITE, (127, 127, 127)]

    def test_of_grey(self) -> None:
        image = Image.new("LA", (2, 1), (40, 255))
        image.putpixel((1, 0), (0, 0))
        decoded = decode(saved(image), LIMITS)
        assert [decoded.getpixel((x, 0)) for x in range(2)] == [(40, 40, 40), WHITE]

    @pytest.mark.parametrize("kind", ["PNG", "GIF"])
    def test_of_a_palette(self, kind: str) -> None:
        image = Image.new("P", (2, 1), 0)
        image.putpalette([*RED, *BLUE])
        image.putpixel((1, 0), 1)
        decoded = decode(saved(image, kind, transparency=1), LIMITS)
        assert [decoded.getpixel((x, 0)) for x in range(2)] == [RED, WHITE]

    def test_by_colour_key(self) -> None:
        image = Image.new("RGB", (2, 1), RED)
        image.putpixel((1, 0), BLUE)
        decoded = decode(saved(image, transparency=BLUE), LIMITS)
        assert [decoded.getpixel((x, 0)) for x in range(2)] == [RED, WHITE]


class TestDepth:
    @pytest.mark.parametrize("kind", ["PNG", "TIFF"])
    def test_16_bit_grey_is_scaled(self, kind: str) -> None:
        grey = np.array([[0, 255, 256, 32768, 65535]], np.uint16)
        image = decode(saved(Image.fromarray(grey), kind), LIMITS)
        assert np.asarray(image)[0, :, 0].tolist() == [0, 0, 1, 128, 255]

    def test_32_bit_grey_is_read_as_16(self) -> None:
        grey = np.array([[-5, 256, 65535, 1 << 20]], np.int32)
        image = decode(saved(Image.fromarray(grey), "TIFF"), LIMITS)
        assert np.asarray(image)[0, :, 0].tolist() == [0, 1, 255, 255]


class TestAnimation:
    @pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG", "AVIF"])
    def test_gives_the_first_frame(self, kind: str) -> None:
        frames = [Image.new("RGB", (16, 16), colour) for colour in (RED, GREEN, BLUE)]
        data = saved(frames[0], kind, save_all=True, append_images=frames[1:])
        pixel = np.asarray(decode(data, LIMITS))[8, 8]
        assert np.abs(pixel.astype(int) - RED).max() < 8

    def test_thousands_of_frames_cost_one(self) -> None:
        frames = [Image.new("P", (8, 8), index % 2) for index in range(3000)]
        data = saved(frames[0], "GIF", save_all=True, append_images=frames[1:])
        assert decode(data, MediaLimits(image_pixels=64)).size == (8, 8)


@pytest.mark.case(11)
class TestRefused:
    def test_more_pixels_than_the_limit(self) -> None:
        data = saved(Image.new("RGB", (8, 8)))
        assert decode(data, MediaLimits(image_pixels=64)).size == (8, 8)
        with pytest.raises(MediaError, match="more than 63 pixels"):
            decode(data, MediaLimits(image_pixels=63))

    @pytest.mark.parametrize("side", [9000, 50_000])
    def test_a_bomb_by_its_header(self, side: int) -> None:
        # The data would not fill the image, so this message proves that nothing was decoded.
        with pytest.raises(MediaError, match="more than 64,000,000 pixels"):
            decode(png_header(side, side), LIMITS)

    def test_a_gif_frame_larger_than_its_header(self) -> None:
        data = bytearray(saved(Image.new("P", (8, 8)), "GIF"))
        frame = data.index(b",\0\0\0\0\x08\0\x08\0")
        data[frame + 5 : frame + 9] = struct.pack("<HH", 20_000, 20_000)
        with pytest.raises(MediaError):
            decode(bytes(data), LIMITS)

    @pytest.mark.parametrize("size", [(0, 0), (0, 5), (5, 0)])
    def test_no_pixels(self, size: tuple[int, int]) -> None:
        with pytest.raises(MediaError):
            decode(png_header(*size), LIMITS)

    @pytest.mark.parametrize("kind", ["PPM", "ICO", "TGA", "JPEG2000", "PCX", "EPS", "PDF"])
    def test_other_formats(self, kind: str) -> None:
        with pytest.raises(MediaError, match="not one of PNG"):
            decode(saved(noise("RGB"), kind), LIMITS)

    @pytest.mark.parametrize("data", [b"", b"\0", b"<svg xmlns='a'/>", b"%!PS-Adobe-3.0 EPSF-3.0"])
    def test_what_is_no_image(self, data: bytes) -> None:
        with pytest.raises(MediaError, match="not one of PNG"):
            decode(data, LIMITS)

    @pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "BMP", "TIFF", "AVIF"])
    def test_half_a_file(self, kind: str) -> None:
        data = saved(noise("RGB", 64, 64), kind)
        with pytest.raises(MediaError) as caught:
            decode(data[: len(data) // 2], LIMITS)
        assert "0x" not in caught.value.message

    @pytest.mark.parametrize("kind", FORMATS)
    @settings(max_examples=40, deadline=None)
    @given(data=st.data())
    def test_damage_raises_nothing_else(self, kind: str, data: st.DataObject) -> None:
        file = bytearray(saved(noise("RGB"), kind))
        for _ in range(data.draw(st.integers(0, 3))):
            file[data.draw(st.integers(0, len(file) - 1))] = data.draw(st.integers(0, 255))
        cut = data.draw(st.integers(0, len(file)))
        try:
            assert decode(bytes(file[:cut]), MediaLimits(image_pixels=1_000_000)).mode == "RGB"
        except MediaError as error:
            assert error.message
