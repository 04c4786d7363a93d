"""Responses, whole or as typed events, as in
https://platform.openai.com/docs/api-reference/responses.

OpenAI's clients assemble the output from the events, by the position of each item in it.
"""

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from stoker.models.chat.answers.answer_events import (
    CallArguments,
    CallBegun,
    Echoed,
    Event,
    Finished,
    FinishReason,
    Text,
    TokenLogprob,
    Usage,
)
from stoker.models.chat.answers.chat_writer import logprob
from stoker.models.chat.answers.custom_input import CustomInput
from stoker.models.chat.answers.text_blocks import TextBlocks, TextPiece
from stoker.wire import sse
from stoker.wire.generation_request import Generation, Sampling
from stoker.wire.sealed_text import TextSeal

Kind = Literal["message", "reasoning", "function_call", "custom_tool_call"]

_PREFIXES: dict[Kind, str] = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "custom_tool_call": "ctc",
}
_EVENTS: dict[Kind, str] = {
    "message": "response.output_text",
    "reasoning": "response.reasoning_text",
    "function_call": "response.function_call_arguments",
    "custom_tool_call": "response.custom_tool_call_input",
}
_SUMMARY = "response.reasoning_summary_text"
_PART, _SUMMARY_PART = "response.content_part", "response.reasoning_summary_part"


@dataclass
class _Item:
    """Item of the output while it is written."""

    kind: Kind
    place: dict[str, Any]
    """Position of the item, as its events report it."""
    body: dict[str, Any]
    pieces: list[str] = field(default_factory=list[str])
    logprobs: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    is_summary: bool = False
    """True for reasoning that is reported as a summary."""
    input: CustomInput = field(default_factory=CustomInput)
    """Input of a custom tool."""
    delta: sse.EventTemplate | None = None
    """Events of text without log probabilities, with a sequence number and a text."""

    @property
    def events(self) -> str:
        """Beginning of the types of the text's events."""
        return _SUMMARY if self.is_summary else _EVENTS[self.kind]

    def template(self) -> sse.EventTemplate:
        """Returns the template of `delta`."""
        kind = f"{self.events}.delta"
        body: dict[str, Any] = {
            "type": kind,
            "sequence_number": sse.SLOT,
            **self.place,
            "delta": sse.SLOT,
        }
        empty: list[Any] = []
        return sse.EventTemplate(
            body | ({"logprobs": empty} if self.kind == "message" else {}), kind
        )

    @property
    def part_events(self) -> str:
        return _SUMMARY_PART if self.is_summary else _PART

    @property
    def is_call(self) -> bool:
        return self.kind in ("function_call", "custom_tool_call")

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    def part(self) -> dict[str, Any]:
        text = self.text
        if self.kind == "reasoning":
            return {"type": "summary_text" if self.is_summary else "reasoning_text", "text": text}
        empty: list[Any] = []
        part: dict[str, Any] = {"type": "output_text", "text": text, "annotations": empty}
        return part | {"logprobs": self.logprobs}


class ResponseWriter:
    """Writes responses."""

    def __init__(self, generation: Generation, sampling: Sampling) -> None:
        self._head: dict[str, Any] = {
            "id": generation.answer["id"],
            "object": "response",
            "created_at": generation.answer["created"],
            "model": generation.answer["model"],
            **generation.answer["settings"],
            "service_tier": generation.answer.get("service_tier", "default"),
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
        }
        self._calls: dict[str, dict[str, str]] = generation.answer.get("calls", {})
        """Maps names that the model writes to fields of their calls."""
        self._summarizes: bool = generation.answer.get("summarizes", False)
        seal: dict[str, Any] | None = generation.answer.get("seal")
        self._seal = TextSeal(**seal) if seal else None
        self._compacts: str | None = generation.answer.get("compacts")
        """Type of the answer that contains a compaction. None for other answers."""
        self._summary: list[str] = []
        self._stream = generation.stream
        self._number = 0
        """Sequence number of the next event."""
        self._output: list[dict[str, Any]] = []
        self._item: _Item | None = None
        self._blocks = TextBlocks()
        self._finish: FinishReason = "stop"

    def begin(self, usage: Usage) -> bytes:
        response = self._response("in_progress")
        created = self._event("response.created", response=response)
        return created + self._event("response.in_progress", response=response)

    def add(self, choice: int, events: Sequence[Event]) -> bytes:
        noted = self._summarized if self._compacts else self._noted
        return b"".join([noted(event) for event in events])

    def end(self, usage: Usage) -> bytes:
        status = "incomplete" if self._finish == "length" else "completed"
        response = self._response(status, usage)
        if self._compacts == "response.compaction":
            names = ("id", "created_at", "output", "usage")
            fields = {name: response[name] for name in names}
            return sse.encode({"object": self._compacts, **fields})
        if self._stream:
            return self._event(f"response.{status}", response=response)
        return sse.encode(response)

    def fail(self, code: str, message: str) -> bytes:
        last = self._close("incomplete")
        error = {"code": "server_error", "message": message}
        response = self._response("failed") | {"error": error}
        last += self._event("response.failed", response=response)
        # Clients that follow the other conventions raise on the field `error`.
        details = {"code": code, "message": message, "param": None}
        return last + self._event("error", **details, error={"type": "InferenceError", **details})

    def _noted(self, event: Event) -> bytes:
        match event:
            case Text():
                piece = self._blocks.add(event)
                return self._text(piece) if piece else b""
            case CallBegun():
                self._blocks.interrupt()
                return self._close("completed") + self._begin_call(event)
            case CallArguments():
                return self._write_call(event.text)
            case Finished():
                return self._finished(event)
            case Echoed():  # Only in text completions.
                return b""

    def _text(self, piece: TextPiece) -> bytes:
        begun = self._close("completed") + self._begin_text(piece.kind) if piece.is_first else b""
        return begun + self._write(piece.text, piece.logprobs)

    def _begin_text(self, kind: Kind) -> bytes:
        empty: list[Any] = []
        if kind == "reasoning":
            return self._open(kind, {"summary": empty, "content": empty})
        return self._open(kind, {"role": "assistant", "content": empty})

    def _begin_call(self, event: CallBegun) -> bytes:
        names = self._calls.get(event.name) or {"type": "function_call", "name": event.name}
        kind: Kind = "custom_tool_call" if names["type"] == "custom_tool_call" else "function_call"
        content = "input" if kind == "custom_tool_call" else "arguments"
        return self._open(kind, {"call_id": event.id, **names, content: ""})

    def _write_call(self, text: str) -> bytes:
        item = self._item
        if item and item.kind == "custom_tool_call":
            text = item.input.add(text)
        return self._write(text)

    def _finished(self, event: Finished) -> bytes:
        self._finish = event.reason
        written = b""
        if not self._output:
            written += self._text(self._blocks.rest())
        return written + self._close(
            "incomplete" if event.is_cut or event.reason == "length" else "completed"
        )

    def _summarized(self, event: Event) -> bytes:
        if isinstance(event, Text) and not event.reasoning:
            self._summary.append(event.text)
        if not isinstance(event, Finished):
            return b""
        self._finish = event.reason
        summary = "".join(self._summary).strip()
        sealed = self._seal.seal(summary, "compaction") if self._seal else ""
        item = {
            "id": f"cmp_{secrets.token_hex(12)}",
            "type": "compaction",
            "encrypted_content": sealed,
        }
        self._output.append(item)
        added = self._event("response.output_item.added", output_index=0, item=item)
        return added + self._event("response.output_item.done", output_index=0, item=item)

    # --- items ---

    def _open(self, kind: Kind, fields: dict[str, Any]) -> bytes:
        identifier = f"{_PREFIXES[kind]}_{secrets.token_hex(12)}"
        index = len(self._output)
        body = {"id": identifier, "type": kind, "status": "in_progress", **fields}
        place: dict[str, Any] = {"item_id": identifier, "output_index": index}
        self._output.append(body)
        added = self._event("response.output_item.added", output_index=index, item=body)
        is_summary = self._summarizes and kind == "reasoning"
        self._item = item = _Item(kind, place, body, is_summary=is_summary)
        if item.is_call:
            return added
        place["summary_index" if is_summary else "content_index"] = 0
        return added + self._event(f"{item.part_events}.added", **place, part=item.part())

    def _write(self, text: str, logprobs: Sequence[TokenLogprob] = ()) -> bytes:
        item = self._item
        if item is None or not (text or logprobs):
            return b""
        item.pieces.append(text)
        if self._stream and not logprobs:
            if item.delta is None:
                item.delta = item.template()
            self._number += 1
            return item.delta.event(self._number - 1, text)
        further: dict[str, Any] = {}
        if item.kind == "message":
            further["logprobs"] = [logprob(entry) for entry in logprobs]
            item.logprobs += further["logprobs"]
        return self._event(f"{item.events}.delta", **item.place, delta=text, **further)

    def _close(self, status: str) -> bytes:
        """Ends the current item, if one is open."""
        item, self._item = self._item, None
        if item is None:
            return b""
        done = f"{item.events}.done"
        written = b""
        if item.kind == "function_call":
            item.body["arguments"] = item.text
            called = {name: item.body[name] for name in ("name", "arguments")}
            written += self._event(done, **item.place, **called)
        elif item.kind == "custom_tool_call":
            rest = item.input.finish()
            if rest:
                written += self._event(f"{item.events}.delta", **item.place, delta=rest)
            item.body["input"] = item.input.text
            written += self._event(done, **item.place, input=item.input.text)
        else:
            part = item.part()
            item.body["summary" if item.is_summary else "content"] = [part]
            texts = {name: part[name] for name in ("text", "logprobs") if name in part}
            written += self._event(done, **item.place, **texts)
            written += self._event(f"{item.part_events}.done", **item.place, part=part)
        if item.kind == "reasoning" and self._seal:
            item.body["encrypted_content"] = self._seal.seal(item.text, "reasoning")
        item.body["status"] = status
        index = item.place["output_index"]
        return written + self._event(
            "response.output_item.done", output_index=index, item=item.body
        )

    # --- the response and its events ---

    def _response(self, status: str, usage: Usage | None = None) -> dict[str, Any]:
        cut = {"reason": "max_output_tokens"} if status == "incomplete" else None
        return self._head | {
            "status": status,
            "completed_at": int(time.time()) if status == "completed" else None,
            "error": None,
            "incomplete_details": cut,
            "output": self._output,
            "usage": _counts(usage) if usage else None,
        }

    def _event(self, kind: str, **fields: Any) -> bytes:
        if not self._stream:
            return b""
        body = {"type": kind, "sequence_number": self._number, **fields}
        self._number += 1
        return sse.event(body, kind)


class TokenCountWriter:
    """Writes the number of input tokens of a response or a message. No answer is generated."""

    def __init__(self, generation: Generation) -> None:
        is_response = generation.api == "input_tokens"
        self._head = {"object": "response.input_tokens"} if is_response else {}

    def begin(self, usage: Usage) -> bytes:
        return b""

    def add(self, choice: int, events: Sequence[Event]) -> bytes:
        return b""

    def end(self, usage: Usage) -> bytes:
        return sse.encode({**self._head, "input_tokens": usage.prompt})

    def fail(self, code: str, message: str) -> bytes:
        return sse.error(code, message)


def _counts(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt,
        "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": 0},
        "output_tokens": usage.completion,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.prompt + usage.completion,
    }
