"""Range headers are answered as RFC 9110, section 14, requires. The tests read them
independently.
"""

import asyncio
import email
import email.policy
import re
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import orjson
from hypothesis import strategies as st
from starlette.types import Message

from stoker.base.errors import InvalidRequestError
from stoker.registry.artifacts.message import _content_range
from stoker.registry.files.content import Content
from tests.fuzzing.support import fuzz

SIZES = [0, 1, 2, 10, 255, 256]
BYTES = bytes(range(256))
NUMBERS = st.integers(0, 12) | st.sampled_from([254, 255, 256, 257, 1 << 31, 1 << 64, 10**30])
DIGITS = NUMBERS.map(str) | st.sampled_from(
    ["", "00", "007", "+1", "-1", "1_0", "0x1", "²", "1 0", "1e1"]
)
DIGITS |= st.just("9" * 5000)
BLANKS = st.sampled_from(["", "", "", " ", "\t", "\x0b", "\xa0", "\x85"])
SPECS = st.tuples(
    BLANKS, DIGITS, st.sampled_from(["-", "-", "-", "-", "--", "", " - ", "~"]), DIGITS, BLANKS
)
UNITS = ["bytes"] * 8 + ["Bytes", "BYTES", "items", "byte", "", " bytes", "bytes ", "\xa0bytes"]


@st.composite
def headers(draw: st.DrawFn) -> str:
    specs = draw(st.lists(SPECS.map("".join), min_size=1, max_size=4))
    if draw(st.integers(0, 20)) == 0:
        specs *= draw(st.sampled_from([30, 101]))
    equals = draw(st.sampled_from(["="] * 8 + ["", "==", " = "]))
    commas = draw(st.sampled_from([",", ",", ", ", ",,", " ,", ";"]))
    # Limited to the characters that a header can hold.
    header = draw(st.sampled_from(UNITS)) + equals + commas.join(specs)
    return header.encode("latin-1", "replace").decode("latin-1")


@st.composite
def right_headers(draw: st.DrawFn) -> str:
    first = st.tuples(NUMBERS, NUMBERS).map(lambda two: f"{min(two)}-{max(two)}")
    specs = (
        first | NUMBERS.map(lambda number: f"{number}-") | NUMBERS.map(lambda number: f"-{number}")
    )
    return "bytes=" + draw(st.sampled_from([",", ", ", ",,", "\t, "])).join(
        draw(st.lists(specs, min_size=1, max_size=5))
    )


_SET = re.compile(r"bytes=(.*)", re.IGNORECASE | re.DOTALL)
_SPEC = re.compile("([0-9]{1,100})-([0-9]{0,100})|-([0-9]{1,100})")
"""Pattern of one range. Longer numbers are rejected, because no file has so many bytes."""


def ranges(header: str, size: int) -> list[tuple[int, int]] | None:
    """Returns the satisfiable ranges as (begin, end). None means that the header has no valid byte
    ranges.
    """
    match = _SET.fullmatch(header.strip(" \t"))
    parts = [part.strip(" \t") for part in match[1].split(",")] if match else []
    specs = [_SPEC.fullmatch(part) for part in parts if part]
    if not specs:
        return None
    satisfiable: list[tuple[int, int]] = []
    for spec in specs:
        if spec is None:
            return None
        first, last, suffix = spec.groups()
        if suffix is not None:
            begin, end = max(size - int(suffix), 0), size
        else:
            begin, end = int(first), int(last) + 1 if last else size
            if last and int(last) < int(first):
                return None
        if begin < min(end, size):
            satisfiable.append((begin, min(end, size)))
    return satisfiable


@cache
def file(size: int) -> Path:
    path = Path(mkdtemp()) / "file"
    path.write_bytes(BYTES[:size])
    return path


@cache
def _loop() -> asyncio.Runner:
    return asyncio.Runner()


async def _never() -> Message:
    raise AssertionError("nothing is to be received")


def answered(header: str, size: int) -> tuple[int, dict[str, str], bytes]:
    """Requests a file with a Range header. Returns the response's status, headers and body."""
    sent: list[Any] = []

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "GET",
        "asgi": {"spec_version": "2.4"},
        "headers": [(b"range", header.encode("latin-1"))],
    }
    path = file(size)
    _loop().run(Content(path, media_type="image/png", stat_result=path.stat())(scope, _never, send))
    start, *bodies = sent
    head = {name.decode(): value.decode() for name, value in start["headers"]}
    return start["status"], head, b"".join(event.get("body", b"") for event in bodies)


def parts(kind: str, body: bytes) -> list[tuple[str, bytes]]:
    """Returns each part's Content-Range and bytes from a multipart/byteranges body."""
    boundary = kind.partition("boundary=")[2].encode()
    contents: list[tuple[str, bytes]] = []
    for part in (b"\r\n" + body).split(b"\r\n--" + boundary)[1:-1]:
        head, _, content = part.removeprefix(b"\r\n").partition(b"\r\n\r\n")
        fields = email.message_from_bytes(head, policy=email.policy.HTTP)
        contents.append((str(fields["content-range"]), content))
    return contents


def merged(wanted: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Returns the ranges in order, with touching or overlapping ones merged."""
    result: list[tuple[int, int]] = []
    for begin, end in sorted(wanted):
        if result and begin <= result[-1][1]:
            result[-1] = (result[-1][0], max(result[-1][1], end))
        else:
            result.append((begin, end))
    return result


def answered_rightly(header: str, size: int) -> bool:
    status, head, body = answered(header, size)
    satisfiable = ranges(header, size)
    assert int(head["content-length"]) == len(body)
    if status == 200:
        # A server may ignore the header, for example if so many ranges are an attack.
        assert body == BYTES[:size]
        assert header.count(",") >= 100
        return True
    if satisfiable is None:
        assert status == 400, body
        assert orjson.loads(body)["error"]["param"] == "range"
        return False
    if not satisfiable:
        assert status == 416
        assert head["content-range"] == f"bytes */{size}"
        return False
    assert status == 206, body
    expected = [
        (f"bytes {begin}-{end - 1}/{size}", BYTES[begin:end]) for begin, end in merged(satisfiable)
    ]
    if head["content-type"] == "image/png":
        assert [(head["content-range"], body)] == expected
    else:
        assert parts(head["content-type"], body) == expected
    return True


@fuzz(headers(), st.sampled_from(SIZES), examples=150)
def test_answered_as_the_standard_reads_it(header: str, size: int) -> bool:
    return answered_rightly(header, size)


@fuzz(right_headers(), st.sampled_from(SIZES), examples=150)
def test_a_right_one_is_answered(header: str, size: int) -> bool:
    assert ranges(header, size) is not None
    return answered_rightly(header, size)


@fuzz(
    st.tuples(
        st.sampled_from(["bytes ", "bytes", "bytes=", "Bytes ", "items "]), DIGITS, DIGITS, DIGITS
    ),
    examples=100,
)
def test_content_range_of_an_upload(given: tuple[str, str, str, str]) -> bool:
    unit, first, last, total = given
    header = f"{unit}{first}-{last}/{total}"
    right = re.fullmatch(r"bytes ([0-9]+)-([0-9]+)/([0-9]+)", header)
    try:
        parsed = _content_range(header)
    except InvalidRequestError:
        assert not right or max(map(len, given)) > 16 or not int(first) <= int(last) < int(total)
        return False
    assert parsed is not None and right
    assert (parsed.start, parsed.end, parsed.total) == (int(first), int(last) + 1, int(total))
    return True
