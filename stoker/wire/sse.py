"""Server-sent events in the form of OpenAI's clients."""

from typing import Any

import msgspec

encode = msgspec.json.Encoder().encode

DONE = b"data: [DONE]\n\n"
ACCEPTED = b": accepted\n\n"
"""A comment that shows the client that its request was accepted."""


_BREAKS = {
    character.encode(): f"\\u{ord(character):04x}".encode()
    for character in ("\x85", "\u2028", "\u2029")
}
"""Characters that JSON may contain unescaped, but at which some clients end a line."""


def event(value: Any, name: str | None = None) -> bytes:
    """Returns an event with the value as JSON data."""
    return framed(encode(value), name)


def framed(body: bytes, name: str | None = None) -> bytes:
    """Returns an event with this JSON as data."""
    head = b"" if name is None else b"event: " + name.encode() + b"\n"
    return head + b"data: " + _on_one_line(body) + b"\n\n"


def _on_one_line(body: bytes) -> bytes:
    """Returns JSON without characters at which some clients end a line."""
    if not body.isascii():
        for character, escape in _BREAKS.items():
            body = body.replace(character, escape)
    return body


SLOT = "\0slot\0"
"""Text that stands for a value of an `EventTemplate`."""


class EventTemplate:
    """Events that differ in a few values only. Encodes only these."""

    def __init__(self, value: Any, name: str | None = None) -> None:
        """
        Args:
            value: JSON data of the events, with `SLOT` in place of each value.
        """
        self._first, *self._rest = event(value, name).split(encode(SLOT))

    def event(self, *values: Any) -> bytes:
        """Returns the event with these values, in the order of their slots."""
        written = self._first
        for value, rest in zip(values, self._rest, strict=True):
            written += _on_one_line(encode(value)) + rest
        return written


def error(code: str, message: str) -> bytes:
    """Returns the last event of a failing stream. OpenAI's clients raise an error for it."""
    body = {"type": "InferenceError", "code": code, "message": message, "param": None}
    return event({"error": body})
