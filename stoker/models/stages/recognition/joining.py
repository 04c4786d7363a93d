"""Joins the windows of a recording into one text, before the last of them is transcribed."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from stoker.models.stages.recognition.transcript_writer import Joined
from stoker.models.stages.recognition.transcripts import Logprob
from stoker.models.stages.recognition.windows import Heard, Stretch


class _Token(NamedTuple):
    id: int
    logprob: float


class WhisperJoining:
    """Appends the transcript of each window. Windows do not overlap."""

    def __init__(
        self,
        tokenizer: Any,
        is_text: Callable[[int], bool],
        heard: Callable[[Mapping[str, Any]], Stretch],
    ) -> None:
        """
        Args:
            is_text: Returns True if a token is text and not a timestamp.
            heard: Returns the stretch after an output.
        """
        self._tokenizer = tokenizer
        self._is_text = is_text
        self._heard = heard
        self._written = 0
        """Number of windows of the current stretch that were read."""
        self._space = ""
        """White space at the end of the text so far. It is written if more text follows."""
        self.tokens = 0

    def partial(self, output: Mapping[str, Any]) -> Joined:
        stretch = self._heard(output)
        windows = stretch.windows[self._written :]
        self._written = len(stretch.windows)
        self.tokens += sum(window.tokens for window in windows)
        return self._read([self._texts(heard) for window in windows for heard in window.heard])

    def _texts(self, heard: Heard) -> list[_Token]:
        """Returns the text tokens of a segment."""
        pairs = zip(heard.tokens, heard.logprobs, strict=True)
        return [_Token(token, logprob) for token, logprob in pairs if self._is_text(token)]

    def add(self, output: Mapping[str, Any]) -> Joined:
        joined = self.partial(output)
        self._written = 0
        return joined

    def end(self) -> Joined:
        return Joined("")

    def _read(self, segments: Sequence[Sequence[_Token]]) -> Joined:
        """Returns the text of segments. No character spans two segments."""
        decode = self._tokenizer.decode
        text = self._space + "".join(decode([token.id for token in tokens]) for tokens in segments)
        ended = text.rstrip()
        self._space = text[len(ended) :]
        logprobs = [
            token_logprob(self._tokenizer, token.id, token.logprob)
            for tokens in segments
            for token in tokens
        ]
        return Joined(ended, logprobs)


def token_logprob(tokenizer: Any, token: int, logprob: float) -> Logprob:
    """Returns a token of byte-level BPE in the format of clients."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    bytes_of: dict[str, int] = {char: byte for byte, char in bytes_to_unicode().items()}
    spelt = tokenizer.convert_ids_to_tokens(token)
    return Logprob(
        token=tokenizer.decode([token]),
        bytes=[bytes_of[char] for char in spelt if char in bytes_of],
        logprob=logprob,
    )


class CtcJoining:
    """Appends windows after their overlap was removed. A word that a window splits is held back
    until it is complete.
    """

    def __init__(self, tokenizer: Any, delimiter: int | None) -> None:
        self._tokenizer = tokenizer
        self._delimiter = delimiter
        self._open: list[int] = []
        self._stretch: float | None = None
        """Start of the last window's stretch in seconds."""
        self._begun = False
        self.tokens = 0

    def partial(self, output: Mapping[str, Any]) -> Joined:
        return Joined("")

    def add(self, output: Mapping[str, Any]) -> Joined:
        settled: list[int] = []
        if output["start_s"] != self._stretch:
            # Two stretches are separated by a silence, so no word spans them.
            settled, self._open, self._stretch = self._open, [], output["start_s"]
        ended = self._read(settled)
        self._open += output["tokens"][0].tolist()
        if self._delimiter is None or self._delimiter not in self._open:
            return ended
        last = len(self._open) - self._open[::-1].index(self._delimiter)
        settled, self._open = self._open[:last], self._open[last:]
        return Joined(ended.text + self._read(settled).text)

    def end(self) -> Joined:
        return self._read(self._open)

    def _read(self, tokens: Sequence[int]) -> Joined:
        text: str = self._tokenizer.decode(tokens).strip() if tokens else ""
        self.tokens += len(self._tokenizer(text, add_special_tokens=False)["input_ids"])
        joined = f" {text}" if text and self._begun else text
        self._begun = self._begun or bool(text)
        return Joined(joined)
