"""Makes one text of windows that overlap, before the last of them is transcribed."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from stoker.stages.recognition.transcript_writer import Joined
from stoker.stages.recognition.transcripts import Logprob

_BROKEN = "\ufffd"
"""Stands at the end of a text whose last character lacks bytes."""


class _Token(NamedTuple):
    id: int
    logprob: float


class WhisperJoining:
    """Overlaps are found as transformers finds them: the longest common sequence of tokens."""

    def __init__(self, tokenizer: Any, first_timestamp: int) -> None:
        self._tokenizer = tokenizer
        self._ignored = set(tokenizer.all_special_ids)
        self._first_timestamp = first_timestamp
        self._open: list[_Token] = []
        """Of the last window, where the next may overlap it."""
        self._unread: list[_Token] = []
        """Settled, but not yet whole characters."""
        self.tokens = 0

    def add(self, output: Mapping[str, Any]) -> Joined:
        count = int(output["count"][0])
        self.tokens += count
        found = [
            _Token(token, logprob)
            for token, logprob in zip(
                output["tokens"][0, :count].tolist(),
                output["logprobs"][0, :count].tolist(),
                strict=True,
            )
            if token < self._first_timestamp and token not in self._ignored
        ]
        settled, self._open = _joined(self._open, found)
        return self._read(settled)

    def end(self) -> Joined:
        rest = self._read(self._open)
        if not self._unread:
            return Joined(rest.text.rstrip(), rest.logprobs)
        left = self._decoded(self._unread)
        return Joined((rest.text + left).rstrip(), [*rest.logprobs, *self._logprobs(self._unread)])

    def _read(self, tokens: Sequence[_Token]) -> Joined:
        self._unread += tokens
        text = self._decoded(self._unread)
        if text.endswith(_BROKEN):
            return Joined("")
        read, self._unread = self._unread, []
        return Joined(text, self._logprobs(read))

    def _decoded(self, tokens: Sequence[_Token]) -> str:
        return self._tokenizer.decode([token.id for token in tokens])

    def _logprobs(self, tokens: Sequence[_Token]) -> list[Logprob]:
        return [token_logprob(self._tokenizer, token.id, token.logprob) for token in tokens]


def token_logprob(tokenizer: Any, token: int, logprob: float) -> Logprob:
    """A token of byte-level BPE as clients read it."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    bytes_of: dict[str, int] = {char: byte for byte, char in bytes_to_unicode().items()}
    spelt = tokenizer.convert_ids_to_tokens(token)
    return Logprob(
        token=tokenizer.decode([token]),
        bytes=[bytes_of[char] for char in spelt if char in bytes_of],
        logprob=logprob,
    )


def _joined(left: list[_Token], right: list[_Token]) -> tuple[list[_Token], list[_Token]]:
    """What is settled of two windows that overlap, and what the next window may still change."""
    if not left or not right:
        return left, right
    from transformers.models.whisper import tokenization_whisper

    library: Any = tokenization_whisper
    ids: list[int] = library._find_longest_common_sequence(
        [[token.id for token in left], [token.id for token in right]]
    )
    # All that is known of the cut: so much of `ids` is the left one's, the rest the right one's.
    own = next(
        size
        for size in range(max(0, len(ids) - len(right)), len(ids) + 1)
        if ids[size:] == [token.id for token in right][len(right) - (len(ids) - size) :]
    )
    return left[:own], right[len(right) - (len(ids) - own) :]


class CtcJoining:
    """Windows abut once what overlaps was cut off; a word that one of them breaks is waited for."""

    def __init__(self, tokenizer: Any, delimiter: int | None) -> None:
        self._tokenizer = tokenizer
        self._delimiter = delimiter
        self._open: list[int] = []
        self._begun = False
        self.tokens = 0

    def add(self, output: Mapping[str, Any]) -> Joined:
        self._open += output["tokens"][0].tolist()
        if self._delimiter is None or self._delimiter not in self._open:
            return Joined("")
        last = len(self._open) - self._open[::-1].index(self._delimiter)
        settled, self._open = self._open[:last], self._open[last:]
        return self._read(settled)

    def end(self) -> Joined:
        return self._read(self._open)

    def _read(self, tokens: Sequence[int]) -> Joined:
        text: str = self._tokenizer.decode(tokens).strip()
        self.tokens += len(self._tokenizer(text, add_special_tokens=False)["input_ids"])
        joined = f" {text}" if text and self._begun else text
        self._begun = self._begun or bool(text)
        return Joined(joined)
