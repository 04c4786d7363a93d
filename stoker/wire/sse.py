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
    """Returns an event with this JSON as data, on one line for every client."""
    if not body.isascii():
        for character, escape in _BREAKS.items():
            body = body.replace(character, escape)
    head = b"" if name is None else b"event: " + name.encode() + b"\n"
    return head + b"data: " + body + b"\n\n"


def error(code: str, message: str) -> bytes:
    """Returns the last event of a failing stream. OpenAI's clients raise an error for it."""
    body = {"type": "InferenceError", "code": code, "message": message, "param": None}
    return event({"error": body})
