"""Loads media from a client's string: a URL, a data URI, a local path or base64."""

import asyncio
import binascii
import os
import re
import stat
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote, unquote_to_bytes

from stoker.base.errors import InvalidMediaError
from stoker.media.fetch import Fetcher, shown_size
from stoker.media.inline import Inline

FORMS = "Send an http(s) URL, a data URI (data:image/png;base64,…) or base64."

# Decoding more than this would delay the other requests of the event loop.
INLINE_LIMIT_CHARS = 1024 * 1024
# Decoding holds the GIL, so it runs in steps between which other threads run.
STEP = 1024 * 1024
PATH_LIMIT_CHARS = 4096

_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*):", re.IGNORECASE)
_BLANKS = b" \t\r\n\f\v"
_STANDARD = bytes.maketrans(b"-_", b"+/")
# Beginnings of base64 with the first byte 0xFF: JPEG, and the frames of MPEG audio and ADTS.
_NOT_A_PATH = ("/9j/", "//", "/+")


async def load(
    source: str | Inline,
    *,
    fetcher: Fetcher,
    folders: Sequence[Path],
    limit_bytes: int,
    timeout_s: float | None,
) -> bytes:
    """Returns the bytes that a string stands for, at least one and at most `limit_bytes`.

    Raises InvalidMediaError.

    Args:
        folders: folders that may contain a local path. Empty: no path is read.
        timeout_s: deadline for fetching a URL in seconds. None: the server's ceiling.
    """
    if isinstance(source, Inline):
        known = await asyncio.to_thread(_decode_inline, source, limit_bytes)
        if isinstance(known, bytes):
            return known
        source = known
    source = source.strip()
    if not source:
        raise InvalidMediaError(f"The media is an empty string. {FORMS}")
    match = _SCHEME.match(source)
    scheme = match[1].lower() if match else ""
    if scheme in ("http", "https"):
        return await fetcher.fetch(source, limit_bytes=limit_bytes, timeout_s=timeout_s)
    if scheme == "file" or _is_absolute_path(source):
        return await asyncio.to_thread(_read_path, source, folders, limit_bytes)
    if scheme not in ("", "data"):
        raise InvalidMediaError(f"The scheme '{scheme[:32]}:' is not supported for media. {FORMS}")
    decode = _decode_data_uri if scheme else _decode_base64
    if len(source) > INLINE_LIMIT_CHARS:
        media = await asyncio.to_thread(decode, source, limit_bytes)
    else:
        media = decode(source, limit_bytes)
    if not media:
        raise InvalidMediaError(f"The media is empty. {FORMS}")
    return media


def _decode_inline(source: Inline, limit_bytes: int) -> bytes | str:
    """Returns the decoded bytes, or the string if it is neither base64 nor a data URI."""
    try:
        if source.is_numbers:
            return source.samples()
        text = source.text()
    except ValueError as error:
        form = "array of numbers" if source.is_numbers else "string"
        raise InvalidMediaError(f"The media is not a valid {form}.") from error
    begin = text[:PATH_LIMIT_CHARS].lstrip().decode("utf-8", "replace")
    scheme = _SCHEME.match(begin)
    if scheme is None and (len(text) > PATH_LIMIT_CHARS or not _is_absolute_path(begin)):
        return _decode_base64(text, limit_bytes)
    header, comma, _ = begin.partition(",")
    is_base64 = header.split(";")[-1].strip().lower() == "base64"
    if scheme and scheme[1].lower() == "data" and comma and is_base64:
        payload = memoryview(text)[text.index(b",") + 1 :]
        if b"%" in text:
            return _decode_base64(unquote_to_bytes(bytes(payload)), limit_bytes)
        return _decode_base64(payload, limit_bytes)
    if len(text) > limit_bytes * 3 + PATH_LIMIT_CHARS:
        raise _too_large(limit_bytes)
    return text.decode("utf-8", "replace")


def _is_absolute_path(source: str) -> bool:
    """True if the source is an absolute path. A longer string is base64 that begins like a path."""
    return (
        source.startswith("/")
        and not source.startswith(_NOT_A_PATH)
        and len(source) <= PATH_LIMIT_CHARS
    )


def _decode_data_uri(text: str, limit_bytes: int) -> bytes:
    """Decodes a data URI (RFC 2397). Ignores its media type: the content decides."""
    header, comma, payload = text.partition(",")
    if not comma or not payload.isascii():
        raise InvalidMediaError(
            "The data URI is malformed. It has the form data:<type>;base64,<data>, or "
            "data:<type>,<percent-encoded data>."
        )
    if header.split(";")[-1].strip().lower() == "base64":
        return _decode_base64(unquote(payload), limit_bytes)
    # A percent-encoded character takes three characters.
    if len(payload) - 2 * payload.count("%") > limit_bytes:
        raise _too_large(limit_bytes)
    media = unquote_to_bytes(payload)
    if len(media) > limit_bytes:
        raise _too_large(limit_bytes)
    return media


def _decode_base64(text: "_Text", limit_bytes: int) -> bytes:
    """Decodes base64 (RFC 4648), in either alphabet, with or without padding and line breaks."""
    try:
        encoded = b"".join(
            _ascii(text[start : start + STEP]).translate(_STANDARD, _BLANKS)
            for start in range(0, len(text), STEP)
        )
        digits = encoded.rstrip(b"=")
        if len(encoded) - len(digits) > 2 or b"=" in digits:
            raise ValueError("padding")
        if len(digits) * 3 // 4 > limit_bytes:
            raise _too_large(limit_bytes)
        padded = digits + b"=" * (-len(digits) % 4)
        return b"".join(
            binascii.a2b_base64(padded[start : start + STEP], strict_mode=True)
            for start in range(0, len(padded), STEP)
        )
    except ValueError as error:
        raise InvalidMediaError(f"The media is not valid base64. {FORMS}") from error


_Text = str | bytes | bytearray | memoryview


def _ascii(text: _Text) -> bytes:
    return text.encode("ascii") if isinstance(text, str) else bytes(text)


def _read_path(source: str, folders: Sequence[Path], limit_bytes: int) -> bytes:
    # The same error for every cause: clients learn nothing about files outside.
    refusal = InvalidMediaError(
        f"The local path is not a file that this server reads (STOKER_MEDIA_DIRS). {FORMS}"
    )
    if not folders or len(source) > PATH_LIMIT_CHARS:
        raise refusal
    path = Path(_unquoted(source))
    try:
        allowed = [folder.resolve() for folder in folders]
        # Checked before any disk access, because its duration would reveal something, too.
        if ".." in path.parts or not any(map(path.is_relative_to, (*folders, *allowed))):
            raise refusal
        resolved = path.resolve(strict=True)
        folder = next(folder for folder in allowed if resolved.is_relative_to(folder))
        descriptor = _open_below(folder, resolved.relative_to(folder))
    # resolve() raises RuntimeError for a loop of links, ValueError for a NUL.
    except (OSError, ValueError, RuntimeError, StopIteration) as error:
        raise refusal from error
    with os.fdopen(descriptor, "rb") as file:
        media = file.read(limit_bytes + 1)
    if len(media) > limit_bytes:
        raise _too_large(limit_bytes)
    if not media:
        raise InvalidMediaError("The file is empty.")
    return media


def _open_below(folder: Path, relative: Path) -> int:
    """Opens a regular file and returns its descriptor. No link swapped in meanwhile leads out of
    `folder`.

    Raises OSError.
    """
    descriptor = os.open(folder, os.O_DIRECTORY | os.O_CLOEXEC)
    for index, part in enumerate(relative.parts, start=1):
        last = index == len(relative.parts)
        # Without O_NONBLOCK, opening a FIFO waits for its writer.
        flags = os.O_NOFOLLOW | os.O_CLOEXEC | (os.O_NONBLOCK if last else os.O_DIRECTORY)
        try:
            inner = os.open(part, flags, dir_fd=descriptor)
        finally:
            os.close(descriptor)
        descriptor = inner
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError("not a regular file")
    return descriptor


def _unquoted(source: str) -> str:
    """Returns the path of a `file:` URL (RFC 8089), or the path itself."""
    if source.startswith("/"):
        return source
    path = source[len("file:") :]
    if path.startswith("//"):
        host, _, rest = path[2:].partition("/")
        # A URL of another host keeps the host's name in front, so it lies in no folder.
        path = f"/{rest}" if host.lower() in ("", "localhost") else path[2:]
    return unquote(path)


def _too_large(limit_bytes: int) -> InvalidMediaError:
    return InvalidMediaError(f"The media is larger than {shown_size(limit_bytes)}, the limit.")
