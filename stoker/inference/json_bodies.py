"""Parses a request from JSON within limits of one step of the event loop.

Long values are cut out while the body is received: media in strings, and recordings as lists of
numbers. The rest is small and is parsed in one step. A field that accepts media finds the value by
its placeholder. Values that no such field has claimed are put back at their full size.
"""

import asyncio
import re
import secrets
import time
from collections.abc import AsyncIterator
from typing import TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError

from stoker.base.errors import InvalidRequestError, PayloadTooLargeError, from_validation
from stoker.inference.forms import FormsRequest
from stoker.media.inline import Inline
from stoker.platform.web import structure
from stoker.platform.web.http import body_limits, declared_length, lift_body_limit_for_media

Asked = TypeVar("Asked", bound=BaseModel)

CUT_BYTES = 4096
"""Minimum length in bytes of strings and lists of numbers that are cut out."""
_WHOLE_BYTES = 256 << 10
"""Maximum size in bytes of a body that is parsed unchanged."""
_PIECE = 16 << 10
_STEP_S = 0.002
_OPENING = re.compile(rb'["\[]')
_STRING = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)
_NUMBERS = re.compile(rb"[-+0-9.eE,\s]*+")


async def read(request: Request, model: type[Asked], *, has_media: bool) -> Asked:
    """Returns the request of a JSON body.

    Args:
        has_media: whether fields of the model accept media, also inline.

    Raises `InvalidRequestError`, `PayloadTooLargeError`.
    """
    if not has_media:
        return validated(model, await request.body())
    lift_body_limit_for_media(request)
    declared = declared_length(request.headers)
    if declared is not None and declared <= _WHOLE_BYTES:
        return _checked(model, await request.body())
    return await _parse_parts(request.stream(), model, body_limits(request).json)


async def parse(body: bytes, model: type[Asked], *, has_media: bool) -> Asked:
    """Returns the request of a complete JSON body, as `read` does. Raises `InvalidRequestError`."""
    if not has_media:
        return validated(model, body)
    if len(body) <= _WHOLE_BYTES:
        return _checked(model, body)
    # The limit counts placeholders in addition to the values that they stand for.
    return await _parse_parts(_once(body), model, 2 * len(body))


def _checked(model: type[Asked], body: bytes) -> Asked:
    structure.check(body)
    return validated(model, body)


async def _once(body: bytes) -> AsyncIterator[bytes]:
    yield body


async def _parse_parts(parts: AsyncIterator[bytes], model: type[Asked], limit: int) -> Asked:
    cutter = Cutter(limit)
    await _cut(parts, cutter)
    parsed = with_media_alone(model, cutter)
    if parsed is None:
        await asyncio.sleep(0)
        parsed = validated(model, cutter.put_back(), cutter)
    return parsed


async def _cut(parts: AsyncIterator[bytes], cutter: "Cutter") -> None:
    began = time.perf_counter()
    async for part in parts:
        for start in range(0, len(part), _PIECE):
            cutter.add(part[start : start + _PIECE])
            if time.perf_counter() - began > _STEP_S:
                await asyncio.sleep(0)
                began = time.perf_counter()


def validated(model: type[Asked], body: bytes | bytearray, cutter: "Cutter | None" = None) -> Asked:
    try:
        return model.model_validate_json(body, context=cutter)
    except ValidationError as error:
        known = model.field_names() if issubclass(model, FormsRequest) else model.model_fields
        raise from_validation(error, known) from error


def with_media_alone(model: type[Asked], cutter: "Cutter") -> Asked | None:
    """Returns the request if only media were cut out of the text, else None."""
    try:
        parsed = validated(model, cutter.end(), cutter)
    except InvalidRequestError:
        if not cutter.has_unclaimed:
            raise
        # The error may be caused by a placeholder that stands for a text.
        return None
    return None if cutter.has_unclaimed else parsed


class Cutter:
    """Cuts long strings and lists of numbers out of a JSON text that arrives in parts."""

    def __init__(self, limit: int) -> None:
        """
        Args:
            limit: the maximum length of the remaining text in bytes.
        """
        self._limit = limit
        self._token = secrets.token_hex(16)
        """Prefix of the placeholders for cut-out values. No client knows it."""
        self._text = bytearray()
        self._counted = 0
        """Length of the text that was already checked."""
        self._structure = structure.Structure()
        self._open: bytearray | None = None
        """The string or list that is being received."""
        self._is_string = False
        self._held = b""
        """A trailing backslash, held until the next character arrives."""
        self._cut: dict[str, Inline] = {}
        self._claimed: set[str] = set()

    def add(self, data: bytes) -> None:
        """Adds a part of the text. Raises `PayloadTooLargeError`, `InvalidRequestError`."""
        data, self._held = self._held + data, b""
        at = 0
        while at < len(data):
            if self._open is None:
                at = self._to_opening(data, at)
            elif self._is_string:
                at = self._to_quote(data, at)
            else:
                at = self._to_bracket(data, at)
        self._check()

    def end(self) -> bytearray:
        """Returns the text with placeholders for the cut-out values."""
        if self._open is not None:
            raise InvalidRequestError(
                "The body is not valid JSON: a string or a list is not closed."
            )
        return self._text

    def claim(self, word: str) -> Inline | None:
        """Returns the value of a placeholder, for a field that accepts media."""
        if inline := self._cut.get(word):
            self._claimed.add(word)
        return inline

    @property
    def has_unclaimed(self) -> bool:
        return len(self._claimed) < len(self._cut)

    def put_back(self) -> bytearray:
        """Returns the text with all unclaimed values restored. Raises `PayloadTooLargeError`."""
        unclaimed = {word: self._cut[word] for word in self._cut if word not in self._claimed}
        if len(self._text) + sum(len(inline.raw) for inline in unclaimed.values()) > self._limit:
            raise self._too_large()

        def text(match: re.Match[bytes]) -> bytes:
            word = match[0][1:-1].decode()
            value = unclaimed.get(word)
            if value is None:
                return match[0]
            return b"[%b]" % value.raw if value.is_numbers else b'"%b"' % value.raw

        self._text = bytearray(re.sub(b'"%b:[0-9]+"' % self._token.encode(), text, self._text))
        for word in unclaimed:
            del self._cut[word]
        structure.check(self._text)
        return self._text

    def _to_opening(self, data: bytes, at: int) -> int:
        match = _OPENING.search(data, at)
        if match is None:
            self._text += data[at:]
            return len(data)
        self._text += data[at : match.start()]
        self._open = bytearray()
        self._is_string = match[0] == b'"'
        return match.end()

    def _to_quote(self, data: bytes, at: int) -> int:
        end = _end(_STRING, data, at)
        self._keep(data[at:end])
        if end == len(data):
            return end
        if data[end] == ord("\\"):
            self._held = data[end:]
            return len(data)
        self._close(b'"', b'"')
        return end + 1

    def _to_bracket(self, data: bytes, at: int) -> int:
        end = _end(_NUMBERS, data, at)
        self._keep(data[at:end])
        if end == len(data):
            return end
        if data[end] == ord("]"):
            self._close(b"[", b"]")
            return end + 1
        # A list of other values is scanned like any other text.
        self._text += b"[%b" % (self._open or b"")
        self._open = None
        return end

    def _keep(self, data: bytes) -> None:
        if self._open is not None:
            self._open += data

    def _close(self, before: bytes, behind: bytes) -> None:
        content, self._open = self._open or bytearray(), None
        if len(content) < CUT_BYTES:
            self._text += before
            self._text += content
            self._text += behind
            return
        word = f"{self._token}:{len(self._cut)}"
        self._cut[word] = Inline(content, is_numbers=not self._is_string)
        self._text += b'"%b"' % word.encode()

    def _check(self) -> None:
        if len(self._text) > self._limit:
            raise self._too_large()
        self._structure.add(self._text[self._counted :])
        self._counted = len(self._text)

    def _too_large(self) -> PayloadTooLargeError:
        return PayloadTooLargeError(
            f"The JSON without its media is larger than {self._limit} bytes, the limit of "
            "this server."
        )


def _end(pattern: re.Pattern[bytes], data: bytes, at: int) -> int:
    match = pattern.match(data, at)
    return match.end() if match else at
