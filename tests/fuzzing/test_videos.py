"""Videos with boxes and elements that were changed at any depth: inert content changes no frame."""

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from hypothesis import strategies as st

from stoker.base.media_limits import MediaLimits
from stoker.media.containers import is_video
from stoker.media.errors import MediaError
from stoker.media.video import decode
from tests.fuzzing.support import fuzz, native_memory
from tests.media.test_video import encoded

LIMITS = MediaLimits(image_pixels=100_000, video_s=20, video_frames=16, video_pixels=1_000_000)
NUMBERS = st.sampled_from(
    [0, 1, 2, 3, 7, 8, 255, 65_535, 1 << 24, (1 << 24) + 1, (1 << 31) - 1, 1 << 31, (1 << 32) - 1]
)
SIZES = st.sampled_from([0, 1, 7, 8, 9, 15, 16, 1 << 31, (1 << 32) - 1])
BOXES = {b"moov", b"trak", b"mdia", b"minf", b"stbl", b"edts", b"udta", b"dinf"}
ELEMENTS = {
    *(b"\x18\x53\x80\x67", b"\x16\x54\xae\x6b", b"\xae", b"\xe0", b"\x1f\x43\xb6\x75"),
    *(b"\x15\x49\xa9\x66", b"\x1c\x53\xbb\x6b", b"\xbb", b"\xb7", b"\x1a\x45\xdf\xa3"),
}


@dataclass(frozen=True)
class Node:
    """Box of an MP4 or element of a WebM. Contains other nodes or bytes."""

    name: bytes
    inner: "tuple[Node, ...] | bytes"
    size: int | None = None
    """Claimed size in bytes, if it is wrong. None means the actual size."""


def boxes(data: bytes) -> tuple[Node, ...]:
    nodes: list[Node] = []
    while data:
        size, name = int.from_bytes(data[:4], "big"), data[4:8]
        content = data[8:size]
        nodes.append(Node(name, boxes(content) if name in BOXES else content))
        data = data[size:]
    return tuple(nodes)


def mp4(nodes: tuple[Node, ...]) -> bytes:
    written = b""
    for node in nodes:
        content = node.inner if isinstance(node.inner, bytes) else mp4(node.inner)
        size = len(content) + 8 if node.size is None else node.size
        written += size.to_bytes(4, "big") + node.name + content
    return written


def elements(data: bytes) -> tuple[Node, ...]:
    """Reads elements of EBML (RFC 8794): an id, and a size with leading zeros that determine its
    length.
    """
    nodes: list[Node] = []
    while data:
        name = data[: 9 - data[0].bit_length()]
        data = data[len(name) :]
        width = 9 - data[0].bit_length()
        size = int.from_bytes(data[:width], "big") & ((1 << 7 * width) - 1)
        # All ones means that the element extends to the end.
        size = len(data) - width if size == (1 << 7 * width) - 1 else size
        content = data[width : width + size]
        nodes.append(Node(name, elements(content) if name in ELEMENTS else content))
        data = data[width + size :]
    return tuple(nodes)


def webm(nodes: tuple[Node, ...]) -> bytes:
    written = b""
    for node in nodes:
        content = node.inner if isinstance(node.inner, bytes) else webm(node.inner)
        size = len(content) if node.size is None else node.size
        written += node.name + b"\x01" + size.to_bytes(7, "big") + content
    return written


FORMATS: dict[str, Any] = {"mp4": (boxes, mp4), "webm": (elements, webm)}
CODECS = {"mp4": "mpeg4", "webm": "libvpx"}


@cache
def right(container: str) -> bytes:
    return encoded(container, CODECS[container], frames=4)


def seen(data: bytes) -> list[np.ndarray[Any, Any]] | None:
    with native_memory(data):
        try:
            return decode(data, num_frames=3, frame_sampling_rate=None, limits=LIMITS)
        except MediaError as error:
            assert error.message
            return None


def changed(draw: st.DrawFn, nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    """Changes one thing, at any depth."""
    if not nodes:
        return nodes
    at = draw(st.integers(0, len(nodes) - 1))
    target = nodes[at]
    if isinstance(target.inner, tuple) and target.inner and draw(st.integers(0, 5)):
        return (*nodes[:at], replace(target, inner=changed(draw, target.inner)), *nodes[at + 1 :])
    kind = draw(
        st.sampled_from(["number"] * 4 + ["gone", "twice", "swap", "size", "name", "nest", "cut"])
    )
    if kind == "gone":
        return nodes[:at] + nodes[at + 1 :]
    if kind == "twice":
        return nodes[:at] + (target,) * draw(st.sampled_from([2, 40])) + nodes[at + 1 :]
    if kind == "swap":
        other = draw(st.integers(0, len(nodes) - 1))
        order = [*nodes]
        order[at], order[other] = order[other], order[at]
        return tuple(order)
    if kind == "size":
        target = replace(target, size=draw(SIZES))
    elif kind == "name":
        target = replace(target, name=draw(st.sampled_from([node.name for node in nodes])))
    elif kind == "nest":
        for _ in range(draw(st.sampled_from([1, 5, 60]))):
            target = Node(target.name, (target,))
    elif isinstance(target.inner, bytes) and kind == "cut":
        target = replace(target, inner=target.inner[: draw(st.integers(0, len(target.inner)))])
    elif isinstance(target.inner, bytes):
        width = draw(st.sampled_from([1, 2, 4, 4, 8]))
        # Position of a number in the head or in the first entries.
        place = draw(st.integers(0, min(max(len(target.inner) - width, 0), 90)))
        number = (draw(NUMBERS) % (1 << 8 * width)).to_bytes(width, "big")
        target = replace(
            target, inner=target.inner[:place] + number + target.inner[place + width :]
        )
    return (*nodes[:at], target, *nodes[at + 1 :])


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    container = draw(st.sampled_from(sorted(FORMATS)))
    read, write = FORMATS[container]
    nodes = read(right(container))
    for _ in range(draw(st.integers(1, 3))):
        nodes = changed(draw, nodes)
    data: bytes = write(nodes)[: 1 << 18]
    return data[: draw(st.integers(0, len(data)))] if draw(st.integers(0, 9)) == 0 else data


@fuzz(damaged(), examples=60)
def test_damaged_files(data: bytes) -> bool:
    frames = seen(data)
    if frames is None:
        return False
    assert is_video(data)
    assert len(frames) == 3
    assert len({frame.shape for frame in frames}) == 1
    height, width, colours = frames[0].shape
    assert colours == 3
    assert 0 < height * width <= LIMITS.image_pixels
    return True


def with_inert(draw: st.DrawFn, nodes: tuple[Node, ...], inert: Node) -> tuple[Node, ...]:
    """Adds an inert node as the last one at any depth."""
    within = [at for at, node in enumerate(nodes) if isinstance(node.inner, tuple)]
    if not within or not draw(st.integers(0, 3)):
        return (*nodes, inert)
    at = draw(st.sampled_from(within))
    node = nodes[at]
    assert isinstance(node.inner, tuple)
    changed_ = replace(node, inner=with_inert(draw, node.inner, inert))
    return (*nodes[:at], changed_, *nodes[at + 1 :])


@st.composite
def inert_files(draw: st.DrawFn) -> tuple[str, bytes]:
    container = draw(st.sampled_from(sorted(FORMATS)))
    read, write = FORMATS[container]
    nodes = read(right(container))
    for _ in range(draw(st.integers(1, 3))):
        filling = bytes(draw(st.sampled_from([0, 1, 8, 300])))
        names = [b"free", b"skip"] if container == "mp4" else [b"\xec"]
        nodes = with_inert(draw, nodes, Node(draw(st.sampled_from(names)), filling))
    return container, write(nodes)


@cache
def frames_of(container: str) -> list[np.ndarray[Any, Any]]:
    frames = seen(right(container))
    assert frames is not None
    return frames


@fuzz(inert_files(), examples=20)
def test_what_is_inert_changes_no_frame(case: tuple[str, bytes]) -> bool:
    container, data = case
    frames = seen(data)
    assert frames is not None
    assert all(map(np.array_equal, frames, frames_of(container)))
    return True
