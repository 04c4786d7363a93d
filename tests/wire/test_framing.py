"""Messages of frames, split at arbitrary points in transit."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.wire.framing import FrameReader, FramingError, framed

MESSAGES = st.lists(st.lists(st.binary(max_size=40), min_size=1, max_size=5), max_size=5)


@given(MESSAGES, st.data())
def test_messages_arrive_as_they_were_however_they_are_torn(
    messages: list[list[bytes]], data: st.DataObject
) -> None:
    sent = b"".join(bytes(piece) for message in messages for piece in framed(message))
    reader, got, at = FrameReader(), list[list[bytes]](), 0
    while at < len(sent):
        size = data.draw(st.integers(1, len(sent) - at))
        got += reader.feed(sent[at : at + size])
        at += size
    assert got == messages


def test_large_frames_are_not_copied_to_be_sent() -> None:
    large = bytes(1 << 20)
    head, *rest = framed([b"head", large])
    assert rest[-1] is large
    assert list(FrameReader().feed(b"".join([head, *rest]))) == [[b"head", large]]


def test_an_empty_frame_beside_a_large_one_is_no_piece() -> None:
    # Sending an empty piece would make no progress and never end.
    frames = [bytes(1 << 20), b""]
    pieces = framed(frames)
    assert all(len(piece) for piece in pieces)
    assert list(FrameReader().feed(b"".join(pieces))) == [frames]


def test_a_message_of_many_pieces_is_joined_once() -> None:
    # Joining the pieces each time would copy 200 GB.
    content = bytes(20 << 20)
    sent = b"".join(framed([content]))
    reader, got = FrameReader(), list[list[bytes]]()
    for at in range(0, len(sent), 1000):
        got += reader.feed(sent[at : at + 1000])
    assert got == [[content]]


@pytest.mark.parametrize(
    "sent",
    [
        struct.pack("<I", 0),
        struct.pack("<I", 65537),
        struct.pack("<IQ", 1, 101),
        struct.pack("<IQQ", 2, 100, 1),
        struct.pack("<IQQ", 2, 1, 2**64 - 1),
    ],
    ids=["no frame", "frames", "long", "long together", "overflow"],
)
def test_what_is_no_message_or_too_long_is_refused_by_its_head(sent: bytes) -> None:
    with pytest.raises(FramingError):
        list(FrameReader(100).feed(sent))


def test_as_long_as_may_be_is_taken() -> None:
    frames = [bytes(60), bytes(40)]
    assert list(FrameReader(100).feed(b"".join(framed(frames)))) == [frames]
