"""Forms with files are read as they were written, and as the standard (RFC 2046, 7578) requires."""

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import httpx
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict
from starlette.requests import Request
from starlette.types import Message

from stoker.base.errors import StokerError
from stoker.inference.bodies import read
from stoker.media.media import Media, MediaKind
from stoker.platform.web.http import BodyLimits
from tests.fuzzing.support import cuts, fuzz, pieces, python_memory

LIMIT = 100_000
FILES = 3
NAMES = st.sampled_from(["file", "mask", "text", "more", "é", "a b", "a;b", 'q"q', "back\\slash"])
CONTENTS = st.binary(max_size=20) | st.sampled_from(
    [
        b"\r\n",
        b"\r",
        b"--",
        b"\r\n--",
        b"\r\n--x",
        b"--xyz",
        b"\r\n--xyz",
        b"\r\n--xyz-",
        b"x" * 5000,
        b"\0",
    ]
)


class Body(BaseModel):
    model_config = ConfigDict(extra="allow")
    file: Any = None
    mask: Any = None


class Shape:
    request = Body
    media: dict[str, MediaKind] = {"file": "audio", "mask": "image"}
    bare = False


@dataclass(frozen=True)
class Part:
    name: str
    content: bytes
    filename: str | None = None
    kind: str | None = None
    head: bytes | None = None
    """Raw head that replaces the one built from name, filename and kind."""

    def written(self) -> bytes:
        if self.head is not None:
            return self.head + self.content

        # Quoted as WHATWG requires of browsers.
        def quoted(text: str) -> bytes:
            return text.replace("\\", "\\\\").replace('"', '\\"').encode()

        head = b'Content-Disposition: form-data; name="%b"' % quoted(self.name)
        if self.filename is not None:
            head += b'; filename="%b"' % quoted(self.filename)
        if self.kind is not None:
            head += b"\r\nContent-Type: " + self.kind.encode()
        return head + b"\r\n\r\n" + self.content


def form(
    parts: Sequence[Part], boundary: bytes, end: bytes = b"--\r\n", line: bytes = b"\r\n"
) -> bytes:
    body = b"".join(b"--" + boundary + line + part.written() + line for part in parts)
    return body + b"--" + boundary + end


@cache
def loop() -> asyncio.Runner:
    return asyncio.Runner()


Fields = dict[str, Any]


def asked(body: Sequence[bytes], content_type: str) -> Fields | str:
    """Returns the fields that the server reads from a form in these pieces, or the message of its
    error.
    """
    remaining = [*body]

    async def receive() -> Message:
        part = remaining.pop(0) if remaining else b""
        return {"type": "http.request", "body": part, "more_body": bool(remaining)}

    scope = {
        "type": "http",
        "method": "POST",
        "query_string": b"",
        "headers": [(b"content-type", content_type.encode("latin-1"))],
        "stoker.body_limits": BodyLimits(LIMIT, LIMIT, None),
    }
    try:
        parsed = loop().run(read(Request(scope, receive), Shape(), max_files=FILES))
    except StokerError as error:
        assert error.status in (400, 415)
        return f"{error.status} {error}"
    fields = {name: getattr(parsed, name) for name in parsed.model_fields_set}
    return {name: _plain(value) for name, value in fields.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return bytes(value.content or b"") if isinstance(value, Media) else value


def expected(parts: Sequence[Part]) -> Fields | None:
    """Returns the expected fields. None means an error: a file in a field that accepts none, or too
    many files.
    """
    if sum(part.filename is not None for part in parts) > FILES:
        return None
    values: dict[str, list[Any]] = {}
    for part in parts:
        name = part.name.removesuffix("[]")
        if part.filename is not None and name not in Shape.media:
            return None
        value = part.content if part.filename is not None else text(part.content)
        values.setdefault(name, []).append(value)
    lists = {part.name[:-2] for part in parts if part.name.endswith("[]")}
    return {
        name: many if name in lists or len(many) > 1 else many[0] for name, many in values.items()
    }


def text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data.decode("latin-1")


@st.composite
def boundaries(draw: st.DrawFn) -> tuple[bytes, str]:
    """Draws a boundary and a content type with it."""
    boundary = draw(st.sampled_from(["xyz", "xyz", "x", "a'()+_,-./:=? b", "-" * 20, "x" * 70]))
    quoted = not boundary.isalnum() or draw(st.booleans())
    named = f'"{boundary}"' if quoted else boundary
    head = draw(
        st.sampled_from(
            ["multipart/form-data; ", "Multipart/Form-Data;", "multipart/form-data; a=b; "]
        )
    )
    return boundary.encode(), f"{head}{draw(st.sampled_from(['boundary', 'Boundary']))}={named}"


@st.composite
def some_parts(draw: st.DrawFn) -> Part:
    is_file = draw(st.booleans())
    return Part(
        draw(
            st.sampled_from(["file", "mask", "file[]"])
            if is_file and draw(st.booleans())
            else NAMES
        ),
        draw(CONTENTS),
        draw(st.sampled_from(["a.wav", "", "é.wav", 'q"q', "C:\\a"])) if is_file else None,
        draw(
            st.none()
            | st.sampled_from(["audio/wav", "text/plain; charset=utf-16", "multipart/mixed"])
        ),
    )


@st.composite
def right_forms(draw: st.DrawFn) -> tuple[list[Part], list[bytes], str]:
    boundary, content_type = draw(boundaries())
    clash = b"\r\n--" + boundary
    parts = [
        part
        for part in draw(st.lists(some_parts(), max_size=5))
        if clash not in b"\r\n" + part.content + b"\r"
    ]
    body = form(parts, boundary)
    return parts, pieces(body, draw(where(len(body)))), content_type


def where(length: int) -> st.SearchStrategy[list[int]]:
    return (
        cuts(length) if length < 400 else st.lists(st.integers(0, length), max_size=9).map(sorted)
    )


@fuzz(right_forms(), examples=150)
def test_read_as_it_was_written(case: tuple[list[Part], list[bytes], str]) -> bool:
    parts, body, content_type = case
    expected_fields = expected(parts)
    actual = asked(body, content_type)
    if expected_fields is None:
        assert isinstance(actual, str)
        return False
    assert actual == expected_fields
    return True


@fuzz(st.lists(some_parts(), max_size=4), st.data(), examples=50)
def test_read_as_the_client_library_wrote_it(parts: list[Part], data: st.DataObject) -> bool:
    sent = [replace(part, name=re.sub('["\\\\]', "", part.name)) for part in parts]
    files = [
        (part.name, ("" if part.filename is None else part.filename, part.content))
        if part.filename
        else (part.name, (None, part.content))
        for part in sent
    ]
    sent = [replace(part, filename=part.filename or None) for part in sent]
    request = httpx.Request("POST", "http://x", files=files or {"": (None, b"")})
    body = request.read()
    at = data.draw(where(len(body)))
    actual = asked(pieces(body, at), request.headers["content-type"])
    expected_fields = expected(sent) if files else {"": ""}
    if expected_fields is None:
        assert isinstance(actual, str)
        return False
    assert actual == expected_fields
    return True


HEADS = st.sampled_from(
    [
        b"\r\n",
        b"\r\n\r\n",
        b"Content-Disposition: form-data\r\n\r\n",
        b"Content-Disposition: form-data; name=text\r\n\r\n",
        b'CONTENT-DISPOSITION:form-data;name="text"\r\n\r\n',
        b'Content-Disposition: attachment; name="text"; name="file"\r\n\r\n',
        b'Content-Disposition: form-data; name="text"\r\n'
        b'Content-Disposition: form-data; name="b"\r\n\r\n',
        b'Content-Disposition: form-data;\r\n name="text"\r\n\r\n',
        b"Content-Disposition: form-data; name=\"file\"; filename*=utf-8''a.wav\r\n\r\n",
        b'Content-Disposition: form-data; name="text\r\n\r\n',
        b'Content-Disposition: form-data; name="text"\n\n',
        b'Content-Disposition : form-data; name="text"\r\n\r\n',
        b'Content-Disposition: form-data; name="\xff\xfe"\r\n\r\n',
        b'Content-Disposition: form-data; name="text"; x="' + b"x" * 5000 + b'"\r\n\r\n',
        b"a: b\r\n" * 20 + b"\r\n",
        b": b\r\n\r\n",
        b"Content-Type: multipart/mixed; boundary=in\r\n\r\n--in\r\n\r\n--in--",
        b'Content-Disposition: form-data; name="file"; filename="a"\r\n'
        b"Content-Transfer-Encoding: base64\r\n\r\n",
        b"",
    ]
)


@st.composite
def broken_forms(draw: st.DrawFn) -> tuple[list[bytes], str, bytes | None]:
    """Draws pieces, a content type, and the boundary if the content type is valid."""
    boundary, content_type = draw(boundaries())
    parts = draw(st.lists(some_parts(), max_size=4))
    parts = [replace(item, head=draw(HEADS)) if draw(st.booleans()) else item for item in parts]
    ends = [
        b"--\r\n",
        b"--",
        b"",
        b"-",
        b"\r\n",
        b"--\r\nepilogue",
        b"--epilogue",
        b" --\r\n",
        b"--\r\n--" + boundary,
    ]
    lines = [b"\r\n", b"\r\n", b"\r\n", b"\n", b" \r\n", b"\r", b"--\r\n"]
    body = form(parts, boundary, draw(st.sampled_from(ends)), draw(st.sampled_from(lines)))
    preamble = st.sampled_from(
        [b"", b"", b"\r\n", b"\r\n\r\n", b"preamble\r\n", b"--", b"\n", b"--x\r\n"]
    )
    body = draw(preamble) + body
    if draw(st.integers(0, 3)) == 0:
        body = body[: draw(st.integers(0, len(body)))]
    charsets = ["utf-16", "x", "base64", "zlib", "idna", "undefined", "unicode_escape", "\0", '"']
    bad_types = [f"{content_type}; charset={item}" for item in charsets]
    bad_types += ["multipart/form-data", "multipart/form-data; boundary=", content_type + "x" * 300]
    bad_types += ["multipart/mixed; boundary=xyz", "multipart/form-data; boundary*=utf-8''xyz"]
    bad_types.append(content_type[:-1])
    at = draw(where(len(body)))
    if draw(st.integers(0, 5)) == 0:
        return pieces(body, at), draw(st.sampled_from(bad_types)), None
    return pieces(body, at), content_type, boundary


def by_the_standard(body: bytes, boundary: bytes) -> list[bytes] | None:
    """Returns the contents of the parts, read in order. None means that the form has no proper
    end.
    """
    delimiter = b"\r\n--" + boundary
    # Empty lines before the form are skipped, with any line ends.
    body = b"\r\n" + body.lstrip(b"\r\n")
    at = body.find(delimiter)
    contents: list[bytes] = []
    while at >= 0:
        at += len(delimiter)
        if body[at:].startswith(b"--"):
            return contents
        at = body.find(b"\r\n\r\n", at)
        end = body.find(delimiter, at + 4)
        if at >= 0:
            contents.append(body[at + 4 : end])
            at = end
    return None


@fuzz(broken_forms(), examples=200)
def test_read_alike_in_any_pieces(case: tuple[list[bytes], str, bytes | None]) -> bool:
    parts, content_type, boundary = case
    body = b"".join(parts)
    with python_memory(64 * len(body) + (1 << 20)):
        whole = asked([body], content_type)
    assert asked(parts, content_type) == whole
    if isinstance(whole, str):
        return False
    if boundary is None:
        return True
    # The accepted values are those of the body.
    read_ = by_the_standard(body, boundary)
    assert read_ is not None
    flat = [
        item for many in whole.values() for item in (many if isinstance(many, list) else [many])
    ]
    texts = [item if isinstance(item, str) else text(item) for item in flat]
    assert sorted(texts) == sorted(map(text, read_))
    return True
