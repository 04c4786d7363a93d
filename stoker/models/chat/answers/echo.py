"""The prompt of a text completion, repeated before its answer."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from stoker.models.chat.answers.answer_events import Echoed, TokenLogprob
from stoker.models.chat.answers.detokenizing import Detokenizer


@dataclass
class Echo:
    """What is to be repeated; complete once its log probabilities are there."""

    text: str
    tokens: Sequence[str] = ()
    """Each one's text, where log probabilities are wanted."""
    offsets: Sequence[int] = ()
    """Where each begins in the text."""
    logprobs: list[TokenLogprob] = field(default_factory=list[TokenLogprob])
    """Of the tokens from the second on, as they come."""

    @property
    def complete(self) -> bool:
        return len(self.logprobs) >= len(self.tokens) - 1

    def event(self) -> Echoed:
        return Echoed(self.text, self.tokens, self.offsets, self.logprobs)


def placed(tokenizer: Any, prompt: str | Sequence[int]) -> tuple[str, list[int]]:
    """A prompt's text, and where in it each of its tokens begins.

    Args:
        tokenizer: of transformers, a fast one.
        prompt: a text, or tokens, of which special ones are part of the text.
    """
    if not isinstance(prompt, str):
        return _joined(tokenizer, prompt)
    spans = tokenizer(prompt, return_offsets_mapping=True)["offset_mapping"]
    offsets: list[int] = []
    for start, _ in spans:
        # Those that the tokenizer adds stand for no text.
        offsets.append(max(start, offsets[-1] if offsets else 0))
    return prompt, offsets


def _joined(tokenizer: Any, tokens: Sequence[int]) -> tuple[str, list[int]]:
    stream = Detokenizer(tokenizer.backend_tokenizer, frozenset())
    text = ""
    offsets: list[int] = []
    for token in tokens:
        offsets.append(len(text))
        text += stream.add([token])
    return text + stream.finish(), offsets
