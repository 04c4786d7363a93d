"""Range headers: answered as RFC 9110, section 14, reads them, by a reading of its own."""

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
    # What a header can hold.
    given = draw(st.sampled_from(UNITS)) + equals + commas.join(specs)
    return given.encode("latin-1", "replace").decode("latin-1")


@st.composite
def right_headers(draw: st.DrawFn) -> str:
    first = st.tuples(NUMBERS, NUMBERS).map(lambda two: f"{min(two)}-{max(two)}")
    specs = first | NUMBERS.map(lambda one: f"{one}-") | NUMBERS.map(lambda one: f"-{one}")
    return "bytes=" + draw(st.sampled_from([",", ", ", ",,", "\t, "])).join(
        draw(st.lists(specs, min_size=1, max_size=5))
    )


_SET = re.compile(r"bytes=(.*)", re.IGNORECASE | re.DOTALL)
_SPEC = re.compile("([0-9]{1,100})-([0-9]{0,100})|-([0-9]{1,100})")
"""Longer ones are refused, as no file has so many bytes."""


def ranges(header: str, size: int) -> list[tuple[int, int]] | None:
    """The satisfiable ranges, as first and end; None where the header is none of bytes."""
    found = _SET.fullmatch(header.strip(" \t"))
    parts = [part.strip(" \t") for part in found[1].split(",")] if found else []
    specs = [_SPEC.fullmatch(part) for part in parts if part]
    if not specs:
        return None
    wanted: list[tuple[int, int]] = []
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
            wanted.append((begin, min(end, size)))
    return wanted


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
    """Status, headers and body."""
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
    found = {name.decode(): value.decode() for name, value in start["headers"]}
    return start["status"], found, b"".join(one.get("body", b"") for one in bodies)


def parts(kind: str, body: bytes) -> list[tuple[str, bytes]]:
    """Of multipart/byteranges: each part's Content-Range and bytes."""
    boundary = kind.partition("boundary=")[2].encode()
    found: list[tuple[str, bytes]] = []
    for one in (b"\r\n" + body).split(b"\r\n--" + boundary)[1:-1]:
        head, _, content = one.removeprefix(b"\r\n").partition(b"\r\n\r\n")
        fields = email.message_from_bytes(head, policy=email.policy.HTTP)
        found.append((str(fields["content-range"]), content))
    return found


def merged(wanted: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Those that touch or overlap as one, in order."""
    found: list[tuple[int, int]] = []
    for begin, end in sorted(wanted):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((begin, end))
    return found


def answered_rightly(header: str, size: int) -> bool:
    status, head, body = answered(header, size)
    wanted = ranges(header, size)
    assert int(head["content-length"]) == len(body)
    if status == 200:
        # A server may ignore it, as where there are so many that they are an attack.
        assert body == BYTES[:size]
        assert header.count(",") >= 100
        return True
    if wanted is None:
        assert status == 400, body
        assert orjson.loads(body)["error"]["param"] == "range"
        return False
    if not wanted:
        assert status == 416
        assert head["content-range"] == f"bytes */{size}"
        return False
    assert status == 206, body
    told = [(f"bytes {begin}-{end - 1}/{size}", BYTES[begin:end]) for begin, end in merged(wanted)]
    if head["content-type"] == "image/png":
        assert [(head["content-range"], body)] == told
    else:
        assert parts(head["content-type"], body) == told
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
        found = _content_range(header)
    except InvalidRequestError:
        assert not right or max(map(len, given)) > 16 or not int(first) <= int(last) < int(total)
        return False
    assert found is not None and right
    assert (found.start, found.end, found.total) == (int(first), int(last) + 1, int(total))
    return True
