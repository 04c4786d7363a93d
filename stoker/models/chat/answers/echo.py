"""The prompt of a text completion, repeated before its answer."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from stoker.models.chat.answers.answer_events import Echoed, TokenLogprob
from stoker.models.chat.answers.detokenizing import Detokenizer


@dataclass
class Echo:
    """Prompt to be repeated. It is complete once its log probabilities have arrived."""

    text: str
    tokens: Sequence[str] = ()
    """Text of each token, if log probabilities are requested."""
    offsets: Sequence[int] = ()
    """Index in the text at which each token begins."""
    logprobs: list[TokenLogprob] = field(default_factory=list[TokenLogprob])
    """Log probabilities of the tokens from the second on, in order of arrival."""

    @property
    def complete(self) -> bool:
        return len(self.logprobs) >= len(self.tokens) - 1

    def event(self) -> Echoed:
        return Echoed(self.text, self.tokens, self.offsets, self.logprobs)


def placed(tokenizer: Any, prompt: str | Sequence[int]) -> tuple[str, list[int]]:
    """Returns a prompt's text, and the index in it at which each of its tokens begins.

    Args:
        tokenizer: fast tokenizer of transformers.
        prompt: a text or tokens. Special tokens among them are part of the text.
    """
    if not isinstance(prompt, str):
        return _joined(tokenizer, prompt)
    spans = tokenizer(prompt, return_offsets_mapping=True)["offset_mapping"]
    offsets: list[int] = []
    for start, _ in spans:
        # Tokens that the tokenizer adds have no text.
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
