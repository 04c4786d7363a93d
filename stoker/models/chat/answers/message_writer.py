"""Messages, whole or as typed events, as in https://platform.claude.com/docs/en/api/messages and
https://platform.claude.com/docs/en/build-with-claude/streaming.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from pydantic_core import from_json

from stoker.models.chat.answers.answer_events import (
    CallArguments,
    CallBegun,
    Echoed,
    Event,
    Finished,
    Text,
    Usage,
)
from stoker.models.chat.answers.text_blocks import TextBlocks, TextPiece
from stoker.wire import sse
from stoker.wire.generation_request import Generation

Thinking = Literal["left out", "omitted", "shown"]
"""`left out`: no blocks for reasoning. `omitted`: blocks without its text. `shown`: with its text.
"""
_DELTA = "content_block_delta"
_DELTAS = {"text": "text_delta", "thinking": "thinking_delta", "tool_use": "input_json_delta"}
_TEXTS = {"text": "text", "thinking": "thinking", "tool_use": "partial_json"}
"""Maps the type of a block to the field of its deltas."""


@dataclass
class _Block:
    """Block of the content while it is written."""

    fields: dict[str, Any]
    pieces: list[str] = field(default_factory=list[str])
    delta: sse.EventTemplate | None = None
    """Events of its text."""

    @property
    def type(self) -> str:
        return self.fields["type"]

    def close(self) -> None:
        """Adds the whole text to the fields."""
        text = "".join(self.pieces)
        if self.type == "tool_use":
            self.fields["input"] = _object(text)
        else:
            self.fields[self.type] = text


_TIERS = {"default": "standard", "flex": "batch", "priority": "priority"}
"""Maps a service tier to Anthropic's name."""


class MessageWriter:
    """Writes messages."""

    def __init__(self, generation: Generation) -> None:
        self._head: dict[str, Any] = {
            "id": generation.answer["id"],
            "type": "message",
            "role": "assistant",
            "model": generation.answer["model"],
        }
        self._thinking: Thinking = generation.answer["thinking"]
        self._tier = _TIERS[generation.answer.get("service_tier", "default")]
        self._max_tokens = generation.sampling.max_tokens
        self._stream = generation.stream
        self._usage = Usage()
        self._has_begun = False
        self._text_blocks = TextBlocks()
        self._content: list[dict[str, Any]] = []
        self._block: _Block | None = None
        self._finished = Finished("stop")

    def begin(self, usage: Usage) -> bytes:
        # `message_start` contains the number of cached tokens, which the first output reports.
        self._usage = usage
        return sse.ACCEPTED

    def add(self, choice: int, events: Sequence[Event]) -> bytes:
        return self._begun() + b"".join([self._noted(event) for event in events])

    def end(self, usage: Usage) -> bytes:
        ends = {
            "stop_reason": self._stop_reason(usage),
            "stop_sequence": self._finished.stop_string,
        }
        if not self._stream:
            body = {
                "content": self._content,
                **ends,
                "usage": self._counts(usage, usage.completion),
            }
            return sse.encode(self._head | body)
        counts = self._counts(usage, usage.completion)
        last = self._event("message_delta", delta=ends, usage=counts)
        return self._begun() + last + self._event("message_stop")

    def fail(self, code: str, message: str) -> bytes:
        error = {"type": "api_error", "message": message, "code": code}
        return self._event("error", error=error)

    def _begun(self) -> bytes:
        """Returns the first events of a stream, once."""
        if self._has_begun:
            return b""
        self._has_begun = True
        empty: list[Any] = []
        ends = {"stop_reason": None, "stop_sequence": None}
        body = {"content": empty, **ends, "usage": self._counts(self._usage, 0)}
        return self._event("message_start", message=self._head | body) + self._event("ping")

    def _stop_reason(self, usage: Usage) -> str:
        match self._finished:
            case Finished("tool_calls"):
                return "tool_use"
            case Finished("stop", stop_string):
                return "end_turn" if stop_string is None else "stop_sequence"
            case _ if usage.completion < (self._max_tokens or 0):
                return "model_context_window_exceeded"
            case _:
                return "max_tokens"

    def _noted(self, event: Event) -> bytes:
        match event:
            case Text(reasoning=True) if self._thinking == "left out":
                return b""
            case Text():
                piece = self._text_blocks.add(event)
                return self._text(piece) if piece else b""
            case CallBegun():
                self._text_blocks.interrupt()
                return self._open(type="tool_use", id=event.id, name=event.name, input={})
            case CallArguments():
                return self._write(event.text)
            case Finished():
                self._finished = event
                return self._close()
            case Echoed():  # Only in text completions.
                return b""

    def _text(self, piece: TextPiece) -> bytes:
        if piece.kind == "message":
            return (self._open(type="text", text="") if piece.is_first else b"") + self._write(
                piece.text
            )
        begun = self._open(type="thinking", thinking="", signature="") if piece.is_first else b""
        return begun + (self._write(piece.text) if self._thinking == "shown" else b"")

    def _open(self, **fields: Any) -> bytes:
        closed = self._close()
        started = self._event("content_block_start", index=len(self._content), content_block=fields)
        self._block = _Block(fields)
        self._content.append(fields)
        return closed + started

    def _write(self, text: str) -> bytes:
        if self._block is None or not text:
            return b""
        self._block.pieces.append(text)
        if not self._stream:
            return b""
        if self._block.delta is None:
            kind = self._block.type
            delta = {"type": _DELTAS[kind], _TEXTS[kind]: sse.SLOT}
            body = {"type": _DELTA, "index": len(self._content) - 1, "delta": delta}
            self._block.delta = sse.EventTemplate(body, _DELTA)
        return self._block.delta.event(text)

    def _close(self) -> bytes:
        """Ends the current block, if one is open."""
        block, self._block = self._block, None
        if block is None:
            return b""
        block.close()
        signed = b""
        if block.type == "thinking":
            block.fields["signature"] = _signature(block.fields["thinking"])
            signed = self._delta(
                {"type": "signature_delta", "signature": block.fields["signature"]}
            )
        return signed + self._event("content_block_stop", index=len(self._content) - 1)

    def _delta(self, delta: Mapping[str, Any]) -> bytes:
        return self._event(_DELTA, index=len(self._content) - 1, delta=delta)

    def _event(self, kind: str, **fields: Any) -> bytes:
        return sse.event({"type": kind, **fields}, kind) if self._stream else b""

    def _counts(self, usage: Usage, output: int) -> dict[str, Any]:
        """Returns the `usage` of a message. `input_tokens` excludes cached tokens."""
        return {
            "input_tokens": usage.prompt - usage.cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": usage.cached,
            "output_tokens": output,
            "output_tokens_details": {"thinking_tokens": usage.reasoning if output else 0},
            "service_tier": self._tier,
        }


def _object(text: str) -> dict[str, Any]:
    """Returns the arguments of a call. Truncated arguments are completed."""
    try:
        value: Any = from_json(text or "{}", allow_partial="trailing-strings")
    except ValueError:
        return {}
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _signature(text: str) -> str:
    """Returns the signature of a thinking block, which clients expect. Nothing checks it."""
    return hashlib.sha256(text.encode()).hexdigest()
