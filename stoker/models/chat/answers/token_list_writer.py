"""Writes an answer that was complete before any step of the model."""

from collections.abc import Sequence

from stoker.models.chat.answers.answer_events import Event, Usage
from stoker.wire import sse


class TokenListWriter:
    """Writes the tokens of prompts, or the text of tokens. No answer is generated."""

    def __init__(self) -> None:
        self.content = b""
        """The answer. Set when the prompts are prepared."""

    def begin(self, usage: Usage) -> bytes:
        return b""

    def add(self, choice: int, events: Sequence[Event]) -> bytes:
        return b""

    def end(self, usage: Usage) -> bytes:
        return self.content

    def fail(self, code: str, message: str) -> bytes:
        return sse.error(code, message)
