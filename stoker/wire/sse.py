"""Server-sent events, as OpenAI's clients read them."""

from typing import Any

import msgspec

encode = msgspec.json.Encoder().encode

DONE = b"data: [DONE]\n\n"


_BREAKS = {
    character.encode(): f"\\u{ord(character):04x}".encode()
    for character in ("\x85", "\u2028", "\u2029")
}
"""Characters that JSON may hold as they are, and at which some clients end a line."""


def event(value: Any, name: str | None = None) -> bytes:
    """Returns an event whose data is the value as JSON."""
    return framed(encode(value), name)


def framed(body: bytes, name: str | None = None) -> bytes:
    """Returns an event whose data is this JSON, on one line for every client."""
    for character, escape in _BREAKS.items():
        body = body.replace(character, escape)
    head = b"" if name is None else b"event: " + name.encode() + b"\n"
    return head + b"data: " + body + b"\n\n"


def error(code: str, message: str) -> bytes:
    """The last event of a stream that fails: OpenAI's clients raise on it."""
    body = {"type": "InferenceError", "code": code, "message": message, "param": None}
    return event({"error": body})
