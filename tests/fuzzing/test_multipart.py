"""Forms with files: read as they were written, and as the standard (RFC 2046, 7578) reads them."""

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
    """In place of what the three make."""

    def written(self) -> bytes:
        if self.head is not None:
            return self.head + self.content

        # As WHATWG has browsers write them.
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
    body = b"".join(b"--" + boundary + line + one.written() + line for one in parts)
    return body + b"--" + boundary + end


@cache
def loop() -> asyncio.Runner:
    return asyncio.Runner()


Fields = dict[str, Any]


def asked(body: Sequence[bytes], content_type: str) -> Fields | str:
    """What the server reads of a form that comes in these pieces; of a refusal, its words."""
    left = [*body]

    async def receive() -> Message:
        part = left.pop(0) if left else b""
        return {"type": "http.request", "body": part, "more_body": bool(left)}

    scope = {
        "type": "http",
        "method": "POST",
        "query_string": b"",
        "headers": [(b"content-type", content_type.encode("latin-1"))],
        "stoker.body_limits": BodyLimits(LIMIT, LIMIT, None),
    }
    try:
        found = loop().run(read(Request(scope, receive), Shape(), max_files=FILES))
    except StokerError as error:
        assert error.status in (400, 415)
        return f"{error.status} {error}"
    given = {name: getattr(found, name) for name in found.model_fields_set}
    return {name: _plain(one) for name, one in given.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return bytes(value.content or b"") if isinstance(value, Media) else value


def expected(parts: Sequence[Part]) -> Fields | None:
    """What these are to be read as; None: a file stands where none is taken, or too many do."""
    if sum(one.filename is not None for one in parts) > FILES:
        return None
    found: dict[str, list[Any]] = {}
    for one in parts:
        name = one.name.removesuffix("[]")
        if one.filename is not None and name not in Shape.media:
            return None
        value = one.content if one.filename is not None else text(one.content)
        found.setdefault(name, []).append(value)
    lists = {one.name[:-2] for one in parts if one.name.endswith("[]")}
    return {
        name: many if name in lists or len(many) > 1 else many[0] for name, many in found.items()
    }


def text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data.decode("latin-1")


@st.composite
def boundaries(draw: st.DrawFn) -> tuple[bytes, str]:
    """A boundary, and the content type that names it."""
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
        one
        for one in draw(st.lists(some_parts(), max_size=5))
        if clash not in b"\r\n" + one.content + b"\r"
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
    wanted = expected(parts)
    found = asked(body, content_type)
    if wanted is None:
        assert isinstance(found, str)
        return False
    assert found == wanted
    return True


@fuzz(st.lists(some_parts(), max_size=4), st.data(), examples=50)
def test_read_as_the_client_library_wrote_it(parts: list[Part], data: st.DataObject) -> bool:
    given = [replace(one, name=re.sub('["\\\\]', "", one.name)) for one in parts]
    files = [
        (one.name, ("" if one.filename is None else one.filename, one.content))
        if one.filename
        else (one.name, (None, one.content))
        for one in given
    ]
    given = [replace(one, filename=one.filename or None) for one in given]
    request = httpx.Request("POST", "http://x", files=files or {"": (None, b"")})
    body = request.read()
    at = data.draw(where(len(body)))
    found = asked(pieces(body, at), request.headers["content-type"])
    wanted = expected(given) if files else {"": ""}
    if wanted is None:
        assert isinstance(found, str)
        return False
    assert found == wanted
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
    """Pieces, content type, and the boundary where the type is as it should be."""
    boundary, content_type = draw(boundaries())
    parts = draw(st.lists(some_parts(), max_size=4))
    parts = [replace(one, head=draw(HEADS)) if draw(st.booleans()) else one for one in parts]
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
    others = [f"{content_type}; charset={one}" for one in charsets]
    others += ["multipart/form-data", "multipart/form-data; boundary=", content_type + "x" * 300]
    others += ["multipart/mixed; boundary=xyz", "multipart/form-data; boundary*=utf-8''xyz"]
    others.append(content_type[:-1])
    at = draw(where(len(body)))
    if draw(st.integers(0, 5)) == 0:
        return pieces(body, at), draw(st.sampled_from(others)), None
    return pieces(body, at), content_type, boundary


def by_the_standard(body: bytes, boundary: bytes) -> list[bytes] | None:
    """Contents of the parts, gone through in order; None where it does not end as a form does."""
    delimiter = b"\r\n--" + boundary
    # Empty lines before it are skipped, in whatever way they end.
    body = b"\r\n" + body.lstrip(b"\r\n")
    at = body.find(delimiter)
    found: list[bytes] = []
    while at >= 0:
        at += len(delimiter)
        if body[at:].startswith(b"--"):
            return found
        at = body.find(b"\r\n\r\n", at)
        end = body.find(delimiter, at + 4)
        if at >= 0:
            found.append(body[at + 4 : end])
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
    # What was taken is what stands there.
    read_ = by_the_standard(body, boundary)
    assert read_ is not None
    flat = [one for many in whole.values() for one in (many if isinstance(many, list) else [many])]
    texts = [one if isinstance(one, str) else text(one) for one in flat]
    assert sorted(texts) == sorted(map(text, read_))
    return True
