"""What happens while an answer is generated, for whoever writes it in a client's convention."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

FinishReason = Literal["stop", "length", "tool_calls"]


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token, or one that could have stood in its place."""

    text: str
    """Its bytes as UTF-8; what is not, replaced. Without bytes, the tokenizer's name of it."""
    content: bytes | None
    value: float
    """Log probability, natural."""
    top: "Sequence[TokenLogprob]" = ()


@dataclass(frozen=True, slots=True)
class Text:
    """The next piece of the answer's text, or of the reasoning before it."""

    text: str
    reasoning: bool = False
    logprobs: Sequence[TokenLogprob] = ()
    """Of the tokens since the last piece, where they were asked for."""


@dataclass(frozen=True, slots=True)
class Echoed:
    """The prompt, where it is to be repeated: before anything else of an answer."""

    text: str
    tokens: Sequence[str] = ()
    """Each one's text, where log probabilities were asked for."""
    offsets: Sequence[int] = ()
    """Where each begins in the text."""
    logprobs: Sequence[TokenLogprob] = ()
    """Of the tokens from the second on: nothing comes before the first."""


@dataclass(frozen=True, slots=True)
class CallBegun:
    """The model calls a tool."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """The next piece of a call's arguments, which are JSON."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class Finished:
    """The answer ends; nothing of it follows."""

    reason: FinishReason
    is_cut: bool = False
    """Whether the arguments of the last call are not complete."""


Event = Echoed | Text | CallBegun | CallArguments | Finished


@dataclass
class Usage:
    """Counted tokens of a request, all of its answers together."""

    prompt: int = 0
    cached: int = 0
    """Of the prompt's, those that were not computed anew."""
    completion: int = 0
    reasoning: int = 0


class Writer(Protocol):
    """Writes a request's answers in a convention: as they come, or at the end."""

    def begin(self) -> bytes:
        """The stream's first part, once the request was accepted."""
        ...

    def add(self, choice: int, events: Sequence[Event]) -> bytes:
        """Note what happened to one of the answers; with streaming, the next part, or nothing."""
        ...

    def end(self, usage: Usage) -> bytes:
        """The stream's last part, or without streaming all of the answer."""
        ...

    def fail(self, code: str, message: str) -> bytes:
        """The stream's last part after a failure."""
        ...
