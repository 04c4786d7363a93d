"""Text completions, whole or as chunks: https://platform.openai.com/docs/api-reference/completions."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from stoker.replica.llm.answers import sse
from stoker.replica.llm.answers.chat import counts, finite
from stoker.replica.llm.events import Event, Finished, Text, TokenLogprob, Usage
from stoker.replica.llm.wire import Generation


@dataclass
class _Answer:
    text: list[str] = field(default_factory=list[str])
    logprobs: list[TokenLogprob] = field(default_factory=list[TokenLogprob])
    length: int = 0
    """Characters whose log probabilities were written."""
    finish: str = ""


class CompletionWriter:
    """See `Writer`."""

    def __init__(self, asked: Generation) -> None:
        self._head: dict[str, Any] = {
            name: asked.answer[name] for name in ("id", "created", "model")
        }
        self._head["object"] = "text_completion"
        self._stream = asked.stream
        self._counts = bool(asked.answer.get("include_usage"))
        self._wants_logprobs = asked.sampling.logprobs is not None
        prompts = [one if isinstance(one, str) else "" for one in asked.prompts]
        self._echoed = [one for one in prompts for _ in range(asked.n)]
        if not asked.answer.get("echo"):
            self._echoed = [""] * len(self._echoed)
        self._answers = [_Answer() for _ in self._echoed]

    def begin(self) -> bytes:
        # Nothing is known yet; a comment lets the client see that it was heard.
        parts = [self._part(index, text, None, ()) for index, text in enumerate(self._echoed)]
        return b": accepted\n\n" + b"".join(parts if any(self._echoed) else [])

    def add(self, choice: int, events: Sequence[Event]) -> bytes:
        written = b""
        for event in events:
            if isinstance(event, Text):
                written += self._text(choice, event)
            elif isinstance(event, Finished):
                self._answers[choice].finish = event.reason
                written += self._part(choice, "", event.reason, ()) if self._stream else b""
        return written

    def end(self, usage: Usage) -> bytes:
        if self._stream:
            last = sse.event(self._head | {"choices": [], "usage": counts(usage)})
            return (last if self._counts else b"") + sse.DONE
        choices = [
            self._choice(index, echoed + "".join(one.text), one.finish, one.logprobs)
            for index, (echoed, one) in enumerate(zip(self._echoed, self._answers, strict=True))
        ]
        return sse.encode(self._head | {"choices": choices, "usage": counts(usage)})

    def fail(self, code: str, message: str) -> bytes:
        return sse.error(code, message)

    def _text(self, choice: int, event: Text) -> bytes:
        if self._stream:
            return self._part(choice, event.text, None, event.logprobs)
        self._answers[choice].text.append(event.text)
        self._answers[choice].logprobs += event.logprobs
        return b""

    def _part(
        self, index: int, text: str, finish: str | None, logprobs: Sequence[TokenLogprob]
    ) -> bytes:
        body: dict[str, Any] = {"choices": [self._choice(index, text, finish, logprobs)]}
        if self._counts:
            body["usage"] = None
        return sse.event(self._head | body)

    def _choice(
        self, index: int, text: str, finish: str | None, logprobs: Sequence[TokenLogprob]
    ) -> dict[str, Any]:
        return {
            "index": index,
            "text": text,
            "logprobs": self._logprobs(index, logprobs) if self._wants_logprobs else None,
            "finish_reason": finish,
        }

    def _logprobs(self, index: int, given: Sequence[TokenLogprob]) -> dict[str, Any]:
        answer = self._answers[index]
        offsets: list[int] = []
        for one in given:
            offsets.append(len(self._echoed[index]) + answer.length)
            answer.length += len(one.text)
        return {
            "tokens": [one.text for one in given],
            "token_logprobs": [finite(one.value) for one in given],
            "top_logprobs": [
                {other.text: finite(other.value) for other in (*one.top, one)} for one in given
            ],
            "text_offset": offsets,
        }
