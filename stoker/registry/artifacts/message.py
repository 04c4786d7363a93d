"""The path and the headers of a PUT request that carries file bytes."""

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
    """Offset after the last byte. The header itself names the last byte."""
    total: int

    @property
    def length(self) -> int:
        return self.end - self.start


class DigestMismatchError(InvalidRequestError):
    code = "digest_mismatch"


@dataclass(frozen=True, kw_only=True)
class Address:
    """The file that a request's path names."""

    account_id: str
    artifact_id: str
    upload_id: str
    path: str
    is_import: bool = False
    """True if an import writes the file instead of a client."""


@dataclass(frozen=True, kw_only=True)
class UploadBody:
    """A request's body and the headers that describe it."""

    chunks: AsyncIterator[bytes]
    length: int | None
    range: ContentRange | None
    digest: bytes | None

    @classmethod
    def of(cls, request: Request) -> "UploadBody":
        """Reads the headers of a PUT.

        Raises `InvalidRequestError` if headers are malformed or contradict each other. Raises
        `UnsupportedMediaTypeError` if the body is not just the file's bytes.
        """
        _refuse_wrapped(request)
        length_header = request.headers.get("content-length", "")
        length = int(length_header) if length_header.isdecimal() else None
        given_range = _content_range(request.headers.get("content-range"))
        if given_range and length is not None and length != given_range.length:
            raise InvalidRequestError(
                f"Content-Range covers {given_range.length} bytes, but the body has {length}.",
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
            "The body must be the raw bytes of the file, without a multipart form or "
            "Content-Encoding."
        )


def _content_range(value: str | None) -> ContentRange | None:
    """Parses a Content-Range (RFC 9110, 14.4). Raises `InvalidRequestError`."""
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
    """Returns the SHA-256 in a Content-Digest (RFC 9530). Raises `InvalidRequestError`."""
    if value is None:
        return None
    # If a member is repeated, the last one counts (RFC 9651, 3.2).
    if digests := _SHA256.findall(value):
        with contextlib.suppress(binascii.Error):
            digest = base64.b64decode(digests[-1], validate=True)
            if len(digest) == _SHA256_BYTES:
                return digest
    raise InvalidRequestError(
        "Content-Digest must read 'sha-256=:BASE64:'. The server checks no other digest.",
        param="Content-Digest",
    )
