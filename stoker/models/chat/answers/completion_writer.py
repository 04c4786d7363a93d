"""Text completions, whole or as chunks: https://platform.openai.com/docs/api-reference/completions."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from stoker.models.chat.answers.answer_events import (
    Echoed,
    Event,
    Finished,
    Text,
    TokenLogprob,
    Usage,
)
from stoker.models.chat.answers.chat_writer import counts, finite
from stoker.wire import sse
from stoker.wire.generation_request import Generation


@dataclass
class _Logprobs:
    """Log probabilities in columns, with one row per token."""

    tokens: list[str] = field(default_factory=list[str])
    values: list[float | None] = field(default_factory=list[float | None])
    """Log probabilities. None for the first token of a prompt, because no token precedes it."""
    top: list[dict[str, float] | None] = field(default_factory=list[dict[str, float] | None])
    offsets: list[int] = field(default_factory=list[int])

    def add(self, one: TokenLogprob, offset: int) -> None:
        self.tokens.append(one.text)
        self.values.append(finite(one.value))
        self.top.append(_top(one))
        self.offsets.append(offset)

    def body(self) -> dict[str, Any]:
        return {
            "tokens": self.tokens,
            "token_logprobs": self.values,
            "top_logprobs": self.top,
            "text_offset": self.offsets,
        }


@dataclass
class _Answer:
    text: list[str] = field(default_factory=list[str])
    logprobs: _Logprobs = field(default_factory=_Logprobs)
    length: int = 0
    """Number of characters with written log probabilities, including those of a repeated prompt."""
    finish: str = ""


def _top(one: TokenLogprob) -> dict[str, float]:
    """Returns the likeliest tokens and the drawn one, keyed by their texts.

    Partial characters share one text, which gets the value of the likeliest of them. A client that
    compares the token with the best of these then finds it less likely.
    """
    values: dict[str, float] = {}
    for other in (*one.top, one):
        values[other.text] = max(finite(other.value), values.get(other.text, -math.inf))
    return values


class CompletionWriter:
    """Writes text completions."""

    def __init__(self, generation: Generation) -> None:
        self._head: dict[str, Any] = {
            name: generation.answer[name] for name in ("id", "created", "model")
        }
        self._head["object"] = "text_completion"
        self._stream = generation.stream
        self._counts = bool(generation.answer.get("include_usage"))
        self._wants_logprobs = generation.sampling.logprobs is not None
        self._answers = [_Answer() for _ in range(len(generation.prompts) * generation.n)]

    def begin(self, usage: Usage) -> bytes:
        # No output is known yet.
        return sse.ACCEPTED

    def add(self, choice: int, events: Sequence[Event]) -> bytes:
        written = b""
        for event in events:
            if isinstance(event, Text | Echoed):
                written += self._text(choice, event)
            elif isinstance(event, Finished):
                self._answers[choice].finish = event.reason
                if self._stream:
                    written += self._part(choice, "", event.reason, _Logprobs())
        return written

    def end(self, usage: Usage) -> bytes:
        if self._stream:
            last = sse.event(self._head | {"choices": [], "usage": counts(usage)})
            return (last if self._counts else b"") + sse.DONE
        choices = [
            self._choice(index, "".join(answer.text), answer.finish, answer.logprobs)
            for index, answer in enumerate(self._answers)
        ]
        return sse.encode(self._head | {"choices": choices, "usage": counts(usage)})

    def fail(self, code: str, message: str) -> bytes:
        return sse.error(code, message)

    def _text(self, choice: int, event: Text | Echoed) -> bytes:
        answer = self._answers[choice]
        columns = _Logprobs() if self._stream else answer.logprobs
        if isinstance(event, Echoed):
            _repeat(event, columns)
            answer.length = len(event.text)
        else:
            for token in event.logprobs:
                columns.add(token, answer.length)
                answer.length += len(token.text)
        if self._stream:
            return self._part(choice, event.text, None, columns)
        answer.text.append(event.text)
        return b""

    def _part(self, index: int, text: str, finish: str | None, logprobs: _Logprobs) -> bytes:
        body: dict[str, Any] = {"choices": [self._choice(index, text, finish, logprobs)]}
        if self._counts:
            body["usage"] = None
        return sse.event(self._head | body)

    def _choice(
        self, index: int, text: str, finish: str | None, logprobs: _Logprobs
    ) -> dict[str, Any]:
        return {
            "index": index,
            "text": text,
            "logprobs": logprobs.body() if self._wants_logprobs else None,
            "finish_reason": finish,
        }


def _repeat(event: Echoed, found: _Logprobs) -> None:
    """Adds the columns of a prompt's tokens. The first token has no value."""
    if event.tokens:
        found.tokens.append(event.tokens[0])
        found.values.append(None)
        found.top.append(None)
        found.offsets.append(event.offsets[0])
    for token, offset in zip(event.logprobs, event.offsets[1:], strict=False):
        found.add(token, offset)
