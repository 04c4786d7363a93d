"""Images with changed chunks, segments and blocks: inert content changes no pixel.

Accepted images look the same as from transformers' `load_image`. No image uses more memory than its
pixels need.
"""

import io
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
from hypothesis import strategies as st
from PIL import Image
from transformers.image_utils import load_image

from stoker.base.media_limits import MediaLimits
from stoker.media.errors import MediaError
from stoker.media.image import decode
from tests.fuzzing.support import fuzz, native_memory
from tests.support.media import image

LIMITS = MediaLimits(image_pixels=100_000)
SIZES = st.sampled_from(
    [0, 1, 2, 3, 255, 256, 257, 16_383, 65_535, 1 << 24, (1 << 31) - 1, (1 << 32) - 1]
)
NOISE = st.sampled_from(
    [b"", b"\0", b"\xff" * 9, b"\0" * 300, b"Comment\0text", b"Exif\0\0MM\0*\0\0\0\x08\0\0"]
)


@dataclass(frozen=True)
class Block:
    """Self-contained piece of a file."""

    name: bytes
    data: bytes


@dataclass(frozen=True)
class Kind:
    """Functions that split and join a format's blocks, with a block that does not affect pixels."""

    read: Callable[[bytes], list[Block]]
    write: Callable[[list[Block]], bytes]
    inert: Block
    after: bytes
    """Name of the block after which the inert block may be placed."""


def _png_blocks(data: bytes) -> list[Block]:
    blocks, at = [], 8
    while at < len(data):
        (length,) = struct.unpack(">I", data[at : at + 4])
        blocks.append(Block(data[at + 4 : at + 8], data[at + 8 : at + 8 + length]))
        at += 12 + length
    return blocks


def _png(blocks: list[Block]) -> bytes:
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(block.data)) + block.name + block.data
        + struct.pack(">I", zlib.crc32(block.name + block.data))
        for block in blocks
    )  # fmt: skip


def _jpeg_blocks(data: bytes) -> list[Block]:
    blocks, at = [], 2
    while data[at + 1] != 0xDA:
        (length,) = struct.unpack(">H", data[at + 2 : at + 4])
        blocks.append(Block(data[at : at + 2], data[at + 4 : at + 2 + length]))
        at += 2 + length
    return [*blocks, Block(b"", data[at:])]


def _jpeg(blocks: list[Block]) -> bytes:
    return b"\xff\xd8" + b"".join(
        block.name + struct.pack(">H", (len(block.data) + 2) & 0xFFFF) + block.data
        if block.name
        else block.data
        for block in blocks
    )


def riff_blocks(data: bytes) -> list[Block]:
    blocks, at = [], 12
    while at < len(data):
        (length,) = struct.unpack("<I", data[at + 4 : at + 8])
        blocks.append(Block(data[at : at + 4], data[at + 8 : at + 8 + length]))
        at += 8 + length + length % 2
    return blocks


def riff(form: bytes, blocks: list[Block]) -> bytes:
    body = b"".join(
        block.name + struct.pack("<I", len(block.data)) + block.data + b"\0" * (len(block.data) % 2)
        for block in blocks
    )
    return b"RIFF" + struct.pack("<I", len(body) + 4) + form + body


def _gif_blocks(data: bytes) -> list[Block]:
    """Returns the screen, its colours, and each extension and picture."""
    at = 13 + (3 << ((data[10] & 7) + 1)) * (data[10] >> 7)
    blocks = [Block(b"screen", data[6:13]), Block(b"colours", data[13:at])]
    while data[at] != 0x3B:
        begin = at
        if data[at] == 0x21:
            at += 2
        else:
            at += 10 + (3 << ((data[at + 9] & 7) + 1)) * (data[at + 9] >> 7) + 1
        while data[at]:
            at += 1 + data[at]
        at += 1
        blocks.append(Block(b"block", data[begin:at]))
    return [*blocks, Block(b"end", data[at:])]


def _gif(blocks: list[Block]) -> bytes:
    return b"GIF89a" + b"".join(block.data for block in blocks)


KINDS = {
    "PNG": Kind(_png_blocks, _png, Block(b"tEXt", b"Comment\0text"), b"IHDR"),
    "JPEG": Kind(_jpeg_blocks, _jpeg, Block(b"\xff\xfe", b"comment"), b"\xff\xe0"),
    "WEBP": Kind(
        riff_blocks, lambda blocks: riff(b"WEBP", blocks), Block(b"xtra", b"odd"), b"VP8X"
    ),
    "GIF": Kind(_gif_blocks, _gif, Block(b"block", b"\x21\xfe\x04text\0"), b"colours"),
}


@cache
def files(kind: str) -> list[bytes]:
    picture = image(1, (23, 17))
    modes = {
        "PNG": ["RGB", "L", "P", "1", "RGBA"],
        "JPEG": ["RGB", "L", "CMYK"],
        "WEBP": ["RGB", "RGBA"],
    }
    contents = []
    for mode in modes.get(kind, ["P", "L"]):
        buffer = io.BytesIO()
        # Metadata makes Pillow write a WebP with the chunks of the extended format.
        more = {"exif": b"Exif\0\0MM\0*\0\0\0\x08\0\0\0\0\0\0"} if kind == "WEBP" else {}
        frames = [image(2, (23, 17)).convert(mode)] if kind == "GIF" else []
        if frames:
            more = {"save_all": True, "append_images": frames}
        picture.convert(mode).save(buffer, kind, **more)
        contents.append(buffer.getvalue())
    return contents


@cache
def pixels(data: bytes) -> bytes:
    return decode(data, LIMITS).tobytes()


def _numbers(draw: st.DrawFn, data: bytes) -> bytes:
    """Replaces a number of a header."""
    if not data:
        return b"\0"
    width = draw(st.sampled_from([1, 2, 4]))
    at = draw(st.integers(0, min(max(len(data) - width, 0), 30)))
    order = draw(st.sampled_from(["big", "little"]))
    number = draw(SIZES) % (1 << 8 * width)
    return data[:at] + number.to_bytes(width, order) + data[at + width :]


def changed(draw: st.DrawFn, blocks: list[Block]) -> list[Block]:
    at = draw(st.integers(0, len(blocks) - 1))
    block = blocks[at]
    kind = draw(
        st.sampled_from(["number", "number", "gone", "twice", "swap", "name", "cut", "more"])
    )
    if kind == "gone":
        return blocks[:at] + blocks[at + 1 :]
    if kind == "twice":
        return blocks[:at] + [block] * draw(st.sampled_from([2, 3, 50])) + blocks[at + 1 :]
    if kind == "swap":
        other = draw(st.integers(0, len(blocks) - 1))
        blocks = [*blocks]
        blocks[at], blocks[other] = blocks[other], blocks[at]
        return blocks
    if kind == "name":
        names = [b.name for b in blocks] + [
            block.name.swapcase(),
            b"acTL",
            b"fdAT",
            b"iCCP",
            b"ANIM",
            b"ALPH",
        ]
        names += [b"\xff\xc2", b"\xff\xdd", b"\xff\xe1", b"\xff\xc4", b"\xff\xdb"]
        changed_ = Block(draw(st.sampled_from(names)), block.data)
    elif kind == "cut":
        changed_ = Block(block.name, block.data[: draw(st.integers(0, len(block.data)))])
    elif kind == "more":
        changed_ = Block(block.name, block.data + draw(NOISE))
    else:
        changed_ = Block(block.name, _numbers(draw, block.data))
    return [*blocks[:at], changed_, *blocks[at + 1 :]]


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    kind = KINDS[draw(st.sampled_from(sorted(KINDS)))]
    name = next(format_name for format_name in KINDS if KINDS[format_name] is kind)
    blocks = kind.read(draw(st.sampled_from(files(name))))
    for _ in range(draw(st.integers(1, 3))):
        blocks = changed(draw, blocks) if blocks else blocks
    data = kind.write(blocks)
    if draw(st.integers(0, 9)) == 0:
        data = data[: draw(st.integers(0, len(data)))]
    # Sets a wrong length if the format stores the length of the whole file.
    return _numbers(draw, data) if draw(st.integers(0, 9)) == 0 else data


@fuzz(damaged(), examples=300)
def test_what_is_taken_looks_as_transformers_has_it(data: bytes) -> bool:
    with native_memory(data):
        try:
            ours = decode(data, LIMITS)
        except MediaError as error:
            assert error.message
            return False
    assert ours.mode == "RGB"
    assert 0 < ours.width * ours.height <= LIMITS.image_pixels
    theirs = Image.open(io.BytesIO(data))
    theirs.load()
    if theirs.mode == "P" and theirs.palette is None:
        # Pillow cannot determine transparency if the palette precedes the header.
        return True
    # These two kinds are deliberately read in another way.
    if not theirs.has_transparency_data and not theirs.mode.startswith("I"):
        assert np.array_equal(np.asarray(ours), np.asarray(load_image(theirs)))
    return True


@st.composite
def with_inert(draw: st.DrawFn) -> tuple[bytes, bytes]:
    name = draw(st.sampled_from(sorted(KINDS)))
    kind, right = KINDS[name], draw(st.sampled_from(files(name)))
    blocks = kind.read(right)
    assert kind.write(blocks)[-len(blocks[-1].data) :] == right[-len(blocks[-1].data) :]
    first = [block.name for block in blocks].index(kind.after) + 1 if name != "JPEG" else 1
    behind = len(blocks) - 1
    for _ in range(draw(st.integers(1, 4))):
        # Inserted before the first of the blocks that belong together: PNG's data, or a GIF's
        # picture and its settings.
        at = draw(st.sampled_from([first, behind])) if name == "PNG" else first
        blocks.insert(at, kind.inert)
    return right, kind.write(blocks)


@fuzz(with_inert(), examples=50)
def test_what_is_inert_changes_no_pixel(case: tuple[bytes, bytes]) -> bool:
    right, more = case
    assert pixels(more) == pixels(right)
    return True
