"""Divides the text of an answer into blocks, as conventions with a list of blocks or items need."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from stoker.models.chat.answers.answer_events import Text, TokenLogprob

TextKind = Literal["message", "reasoning"]


@dataclass(frozen=True, slots=True)
class TextPiece:
    """The next text of a block."""

    kind: TextKind
    text: str
    logprobs: Sequence[TokenLogprob]
    is_first: bool
    """True if it begins a block."""


@dataclass
class _Held:
    """White space that is held until the block that contains it is known."""

    kind: TextKind = "message"
    text: str = ""
    logprobs: list[TokenLogprob] = field(default_factory=list[TokenLogprob])


class TextBlocks:
    """Divides text and reasoning into blocks. White space between blocks belongs to none."""

    def __init__(self) -> None:
        self._held = _Held()
        self._open: TextKind | None = None

    def add(self, event: Text) -> TextPiece | None:
        """Returns the text to write. None while only white space has arrived."""
        kind: TextKind = "reasoning" if event.reasoning else "message"
        if kind == self._open == "message" and not (self._held.text or self._held.logprobs):
            return TextPiece(kind, event.text, event.logprobs, is_first=False)
        if kind != self._held.kind:
            self._held = _Held(kind)
        text = self._held.text + event.text
        logprobs = [*self._held.logprobs, *event.logprobs]
        is_open = self._open == kind
        if not text.strip() and not (is_open and kind == "message"):
            self._held = _Held(kind, text, logprobs)
            return None
        self._held = _Held(kind)
        if kind == "reasoning":
            # The marks around reasoning stand on separate lines.
            stripped = text.rstrip()
            self._held.text = text[len(stripped) :]
            text = stripped if is_open else stripped.lstrip()
        self._open = kind
        return TextPiece(kind, text, logprobs, not is_open)

    def interrupt(self) -> None:
        """Ends the block, because a call begins."""
        self._held, self._open = _Held(), None

    def rest(self) -> TextPiece:
        """Returns the white space of an answer that ended without a block."""
        return TextPiece("message", self._held.text, self._held.logprobs, is_first=True)
