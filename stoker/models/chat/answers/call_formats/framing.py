"""The marks around the parts of an answer: its reasoning, its text, its messages."""

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Headers:
    """An answer of several messages, each with a header."""

    opens: Sequence[str]
    close: str
    ends: Sequence[str]
    """Marks that end a message."""
    reasons: Sequence[str]
    """Words in the header of reasoning."""


@dataclass(frozen=True, kw_only=True)
class Framing:
    """Marks that are not part of the answer's text."""

    reasoning: Sequence[tuple[str, str]] = ()
    """Pairs of marks before and after reasoning."""
    dropped: Sequence[str] = ()
    """Marks that are removed from text."""
    at_start: Sequence[str] = ()
    """Marks that are removed only at the start of the answer."""
    headers: Headers | None = None

    @property
    def literals(self) -> Sequence[str]:
        pairs = [mark for pair in self.reasoning for mark in pair]
        if self.headers:
            pairs += [*self.headers.opens, self.headers.close, *self.headers.ends]
        return [*pairs, *self.dropped]

    @property
    def begins(self) -> Sequence[str]:
        """Marks that begin reasoning."""
        return [before for before, _ in self.reasoning]


@dataclass(frozen=True, kw_only=True)
class _FramingRow:
    shown: Sequence[str]
    """Texts that identify a chat template with these marks. It must contain all of them."""
    framing: Framing = field(default_factory=Framing)


def _reasoning(before: str, after: str, *shown: str) -> _FramingRow:
    return _FramingRow(shown=shown or (before, after), framing=Framing(reasoning=[(before, after)]))


THINK = _reasoning("<think>", "</think>", "</think>")
_ROWS: Sequence[_FramingRow] = (
    THINK,
    _reasoning("<seed:think>", "</seed:think>"),
    _reasoning("<mm:think>", "</mm:think>", "mm:think>"),
    _reasoning("<think:opensource>", "</think:opensource>", "think:opensource"),
    _reasoning("[THINK]", "[/THINK]"),
    _reasoning("<|inner_prefix|>", "<|inner_suffix|>"),
    _reasoning("<|channel>thought\n", "<channel|>", "<|channel>", "<channel|>"),
    _FramingRow(
        shown=("[BEGIN FINAL RESPONSE]",),
        framing=Framing(
            reasoning=[("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]")],
            dropped=["[END FINAL RESPONSE]"],
        ),
    ),
    _FramingRow(
        shown=("<|START_THINKING|>", "<|END_THINKING|>"),
        framing=Framing(
            reasoning=[("<|START_THINKING|>", "<|END_THINKING|>")],
            dropped=["<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"],
        ),
    ),
    _FramingRow(
        shown=("<|open|>", "<|close|>", "<|sep|>"),
        framing=Framing(
            reasoning=[("<|open|>think<|sep|>", "<|close|>think<|sep|>")],
            dropped=[
                "<|open|>response<|sep|>",
                "<|close|>response<|sep|>",
                "<|close|>message<|sep|>",
                "<|end_of_msg|>",
            ],
        ),
    ),
    _FramingRow(
        shown=("<|begin|>", "<|think|>", "<|content|>"),
        framing=Framing(
            reasoning=[("<|think|>", "<|end|>")],
            dropped=["<|begin|>assistant", "<|content|>", "<|end|>", "<|calls|>"],
        ),
    ),
    _FramingRow(shown=(">>>all",), framing=Framing(dropped=[">>>all\n"], at_start=["all\n"])),
    _FramingRow(shown=("<|message_sep|>",), framing=Framing(dropped=["<|message_sep|>"])),
    _FramingRow(
        # OpenAI's Harmony: https://cookbook.openai.com/articles/openai-harmony
        shown=("<|channel|>",),
        framing=Framing(
            headers=Headers(
                opens=["<|start|>", "<|channel|>"],
                close="<|message|>",
                ends=["<|end|>", "<|return|>", "<|call|>"],
                reasons=["analysis"],
            )
        ),
    ),
    _FramingRow(
        shown=("<|eom|>", "<|start|>", "<|message|>"),
        framing=Framing(
            headers=Headers(
                opens=["<|start|>"],
                close="<|message|>",
                ends=["<|eom|>", "<|eot|>"],
                reasons=["to=self"],
            )
        ),
    ),
)


def framing_of(chat_template: str, *, thinks: bool) -> Framing:
    """Returns the marks that a chat template writes around the parts of answers.

    Args:
        thinks: True if the tokenizer has a token that ends reasoning.
    """
    rows = [
        row.framing
        for row in _ROWS
        if all(text in chat_template for text in row.shown) or (thinks and row is THINK)
    ]
    return Framing(
        reasoning=[pair for row in rows for pair in row.reasoning],
        dropped=[mark for row in rows for mark in row.dropped],
        at_start=[mark for row in rows for mark in row.at_start],
        headers=next((row.headers for row in rows if row.headers), None),
    )
