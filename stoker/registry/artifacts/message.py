"""What a PUT names in its path, and what its headers say of the bytes it carries."""

import base64
import binascii
import contextlib
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass

from starlette.requests import Request

from stoker.base.errors import InvalidRequestError, UnsupportedMediaTypeError

_DIGITS = "([0-9]{1,16})"
_RANGE = re.compile(f"bytes {_DIGITS}-{_DIGITS}/{_DIGITS}")
_SHA256 = re.compile(r"(?:^|,)[ \t]*sha-256=:([A-Za-z0-9+/=]*):[ \t]*(?=$|,|;)")
_SHA256_BYTES = 32


@dataclass(frozen=True)
class ContentRange:
    start: int
    end: int
    """One past the last byte (the header names the last byte itself)."""
    total: int

    @property
    def length(self) -> int:
        return self.end - self.start


class DigestMismatchError(InvalidRequestError):
    code = "digest_mismatch"


@dataclass(frozen=True, kw_only=True)
class Address:
    """What the path of a request names."""

    account_id: str
    artifact_id: str
    upload_id: str
    path: str
    is_import: bool = False
    """An import writes, not a client."""


@dataclass(frozen=True, kw_only=True)
class Message:
    """A request's body and what its headers say of it."""

    chunks: AsyncIterator[bytes]
    length: int | None
    range: ContentRange | None
    digest: bytes | None

    @classmethod
    def of(cls, request: Request) -> "Message":
        """Read the headers of a PUT.

        Raises `InvalidRequestError` for such as are malformed or contradict each other and
        `UnsupportedMediaTypeError` for a body that is more than the file's bytes.
        """
        _refuse_wrapped(request)
        given = request.headers.get("content-length", "")
        length = int(given) if given.isdecimal() else None
        given_range = _content_range(request.headers.get("content-range"))
        if given_range and length is not None and length != given_range.length:
            raise InvalidRequestError(
                f"Content-Range names {given_range.length} bytes, the body has {length}.",
                param="Content-Range",
            )
        digest = _content_digest(request.headers.get("content-digest"))
        return cls(chunks=request.stream(), length=length, range=given_range, digest=digest)

    def check_digest(self, sha256: bytes) -> None:
        if self.digest is not None and self.digest != sha256:
            raise DigestMismatchError(
                "The bytes received do not match Content-Digest. Send them again.",
                param="Content-Digest",
            )


def _refuse_wrapped(request: Request) -> None:
    encoding = request.headers.get("content-encoding", "identity").lower()
    media_type = request.headers.get("content-type", "").lower()
    if encoding != "identity" or media_type.startswith("multipart/"):
        raise UnsupportedMediaTypeError(
            "The body must be the file's bytes as they are: no multipart form, no Content-Encoding."
        )


def _content_range(value: str | None) -> ContentRange | None:
    """Read a Content-Range (RFC 9110, 14.4). Raises `InvalidRequestError`."""
    if value is None:
        return None
    if match := _RANGE.fullmatch(value):
        start, last, total = (int(digits) for digits in match.groups())
        if start <= last < total:
            return ContentRange(start, last + 1, total)
    raise InvalidRequestError(
        "Content-Range must read 'bytes FIRST-LAST/TOTAL' with FIRST <= LAST < TOTAL.",
        param="Content-Range",
    )


def _content_digest(value: str | None) -> bytes | None:
    """The SHA-256 in a Content-Digest (RFC 9530). Raises `InvalidRequestError`."""
    if value is None:
        return None
    # Of a member given twice the last one counts (RFC 9651, 3.2).
    if given := _SHA256.findall(value):
        with contextlib.suppress(binascii.Error):
            digest = base64.b64decode(given[-1], validate=True)
            if len(digest) == _SHA256_BYTES:
                return digest
    raise InvalidRequestError(
        "Content-Digest must read 'sha-256=:BASE64:', the only digest that is checked here.",
        param="Content-Digest",
    )
