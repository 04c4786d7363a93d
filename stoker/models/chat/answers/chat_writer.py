"""Chat completions, whole or as chunks, as in https://platform.openai.com/docs/api-reference/chat.

OpenAI's clients join every string of a stream's deltas, so a call's ID and name are sent once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stoker.models.chat.answers.answer_events import (
    CallArguments,
    CallBegun,
    Echoed,
    Event,
    Finished,
    Text,
    TokenLogprob,
    Usage,
)
from stoker.wire import sse
from stoker.wire.generation_request import Generation


@dataclass
class _Message:
    text: list[str] = field(default_factory=list[str])
    reasoning: list[str] = field(default_factory=list[str])
    calls: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    logprobs: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    finish: str = ""

    def note(self, event: Event) -> None:
        match event:
            case Text():
                (self.reasoning if event.reasoning else self.text).append(event.text)
                self.logprobs += [logprob(entry) for entry in event.logprobs]
            case CallBegun():
                function = {"name": event.name, "arguments": ""}
                self.calls.append({"id": event.id, "type": "function", "function": function})
            case CallArguments():
                self.calls[event.index]["function"]["arguments"] += event.text
            case Finished():
                self.finish = event.reason
            case Echoed():  # Only in text completions.
                return

    def body(self) -> dict[str, Any]:
        text = "".join(self.text)
        body: dict[str, Any] = {
            "role": "assistant",
            "content": text if text.strip() or not self.calls else None,
            "refusal": None,
        }
        if self.reasoning:
            body["reasoning_content"] = "".join(self.reasoning).strip()
        if self.calls:
            body["tool_calls"] = self.calls
        return body


class ChatWriter:
    """Writes chat completions."""

    def __init__(self, generation: Generation) -> None:
        self._head: dict[str, Any] = {
            name: generation.answer[name]
            for name in ("id", "created", "model", "service_tier")
            if name in generation.answer
        }
        self._stream = generation.stream
        self._counts = bool(generation.answer.get("include_usage"))
        self._wants_logprobs = generation.sampling.logprobs is not None
        number = len(generation.prompts) * generation.n
        self._messages = [_Message() for _ in range(0 if generation.stream else number)]
        self._number = number
        self._texts: dict[tuple[int, str], sse.EventTemplate] = {}
        """Maps a choice and a field of its delta to the chunks of text."""

    def begin(self, usage: Usage) -> bytes:
        first = {"role": "assistant", "content": "", "refusal": None}
        return b"".join(self._chunk(index, first) for index in range(self._number))

    def add(self, choice: int, events: Sequence[Event]) -> bytes:
        if not self._stream:
            for event in events:
                self._messages[choice].note(event)
            return b""
        return b"".join(self._streamed(choice, event) for event in events)

    def end(self, usage: Usage) -> bytes:
        if self._stream:
            last = self._counted(usage) if self._counts else b""
            return last + sse.DONE
        choices: list[dict[str, Any]] = [
            {
                "index": index,
                "message": message.body(),
                "logprobs": {"content": message.logprobs, "refusal": None}
                if self._wants_logprobs
                else None,
                "finish_reason": message.finish,
            }
            for index, message in enumerate(self._messages)
        ]
        body: dict[str, Any] = {
            "object": "chat.completion",
            "choices": choices,
            "usage": counts(usage),
        }
        return sse.encode(self._head | body)

    def fail(self, code: str, message: str) -> bytes:
        return sse.error(code, message)

    def _streamed(self, choice: int, event: Event) -> bytes:
        match event:
            case Text():
                key = "reasoning_content" if event.reasoning else "content"
                if event.logprobs:
                    return self._chunk(choice, {key: event.text}, logprobs=event.logprobs)
                return self._text(choice, key).event(event.text)
            case CallBegun():
                call = {
                    "index": event.index,
                    "id": event.id,
                    "type": "function",
                    "function": {"name": event.name, "arguments": ""},
                }
                return self._chunk(choice, {"tool_calls": [call]})
            case CallArguments():
                part = {"index": event.index, "function": {"arguments": event.text}}
                return self._chunk(choice, {"tool_calls": [part]})
            case Finished():
                return self._chunk(choice, {}, finish=event.reason)
            case Echoed():  # Only in text completions.
                return b""

    def _text(self, choice: int, key: str) -> sse.EventTemplate:
        """Returns the template of the chunks with text for a field of the delta."""
        template = self._texts.get((choice, key))
        if template is None:
            template = sse.EventTemplate(self._body(choice, {key: sse.SLOT}))
            self._texts[choice, key] = template
        return template

    def _chunk(self, index: int, delta: Mapping[str, Any], **more: Any) -> bytes:
        return sse.event(self._body(index, delta, **more))

    def _body(
        self,
        index: int,
        delta: Mapping[str, Any],
        *,
        finish: str | None = None,
        logprobs: Sequence[TokenLogprob] = (),
    ) -> dict[str, Any]:
        content = {"content": [logprob(entry) for entry in logprobs], "refusal": None}
        choice = {
            "index": index,
            "delta": delta,
            "logprobs": content if logprobs else None,
            "finish_reason": finish,
        }
        body: dict[str, Any] = {"object": "chat.completion.chunk", "choices": [choice]}
        if self._counts:
            body["usage"] = None
        return self._head | body

    def _counted(self, usage: Usage) -> bytes:
        empty: list[Any] = []
        body = {"object": "chat.completion.chunk", "choices": empty, "usage": counts(usage)}
        return sse.event(self._head | body)


def logprob(one: TokenLogprob) -> dict[str, Any]:
    """Returns a member of `logprobs.content`."""
    return _token(one) | {"top_logprobs": [_token(other) for other in one.top]}


def _token(one: TokenLogprob) -> dict[str, Any]:
    content = None if one.content is None else list(one.content)
    return {"token": one.text, "logprob": finite(one.value), "bytes": content}


def finite(value: float) -> float:
    """Returns a finite log probability. JSON has no infinity, and OpenAI writes -9999 for
    impossible tokens.
    """
    return max(value, -9999.0)


def counts(usage: Usage) -> dict[str, Any]:
    """Returns the `usage` of chat and text completions."""
    return {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion,
        "total_tokens": usage.prompt + usage.completion,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
    }
