"""Server-sent events, as OpenAI's clients read them."""

from typing import Any

import msgspec

encode = msgspec.json.Encoder().encode

DONE = b"data: [DONE]\n\n"


def event(value: Any) -> bytes:
    """An event whose data is the value as JSON."""
    return b"data: " + encode(value) + b"\n\n"


def error(code: str, message: str) -> bytes:
    """The last event of a stream that fails: OpenAI's clients raise on it."""
    body = {"type": "InferenceError", "code": code, "message": message, "param": None}
    return event({"error": body})
