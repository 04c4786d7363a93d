"""Events of an answer while it is generated, for writers of a client's convention."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

FinishReason = Literal["stop", "length", "tool_calls"]


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Drawn token, or an alternative at its position."""

    text: str
    """Bytes of the token as UTF-8, with invalid ones replaced. Without bytes, the tokenizer's name
    of the token.
    """
    content: bytes | None
    value: float
    """Natural log probability."""
    top: "Sequence[TokenLogprob]" = ()


@dataclass(frozen=True, slots=True)
class Text:
    """The next piece of the answer's text, or of the reasoning before it."""

    text: str
    reasoning: bool = False
    logprobs: Sequence[TokenLogprob] = ()
    """Log probabilities of the tokens since the last piece, if requested."""


@dataclass(frozen=True, slots=True)
class Echoed:
    """Prompt to be repeated. Comes before any other event of an answer."""

    text: str
    tokens: Sequence[str] = ()
    """Text of each token, if log probabilities were requested."""
    offsets: Sequence[int] = ()
    """Index in the text at which each token begins."""
    logprobs: Sequence[TokenLogprob] = ()
    """Log probabilities of the tokens from the second on. The first token has none."""


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
    """The answer ends. No event follows."""

    reason: FinishReason
    stop_string: str | None = None
    """Stop string that ended the text."""
    is_cut: bool = False
    """True if the arguments of the last call are incomplete."""


Event = Echoed | Text | CallBegun | CallArguments | Finished


@dataclass
class Usage:
    """Token counts of a request, over all of its answers."""

    prompt: int = 0
    cached: int = 0
    """Number of prompt tokens that were already computed."""
    completion: int = 0
    reasoning: int = 0


class AnswerWriter(Protocol):
    """Writes a request's answers in a convention, either streamed or at the end."""

    def begin(self, usage: Usage) -> bytes:
        """Returns the first part of the stream, after the request was accepted.

        Args:
            usage: token counts, which grow until the end. The prompt is already counted.
        """
        ...

    def add(self, choice: int, events: Sequence[Event]) -> bytes:
        """Adds events of one answer. When streaming, returns the next part, which may be empty."""
        ...

    def end(self, usage: Usage) -> bytes:
        """Returns the last part of the stream or, without streaming, the whole answer."""
        ...

    def fail(self, code: str, message: str) -> bytes:
        """Returns the last part of the stream after a failure."""
        ...
