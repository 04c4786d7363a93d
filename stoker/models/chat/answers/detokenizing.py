"""Converts tokens to text as they arrive. Characters and stop strings may span several tokens."""

from collections.abc import Sequence
from typing import Any

from tokenizers.decoders import DecodeStream


class Detokenizer:
    """Text of a growing sequence. A character appears once all of its bytes have arrived."""

    def __init__(self, tokenizer: Any, hidden: frozenset[int]) -> None:
        """
        Args:
            tokenizer: tokenizer of the `tokenizers` library.
            hidden: tokens that add nothing to the text.
        """
        self._tokenizer = tokenizer
        self._hidden = hidden
        self._stream = DecodeStream(skip_special_tokens=False)
        self._held: list[int] = []

    def add(self, tokens: Sequence[int]) -> str:
        """Returns the characters that became complete."""
        text = ""
        for token in tokens:
            if token in self._hidden:
                continue
            try:
                piece = self._stream.step(self._tokenizer, token)
            except Exception:
                piece = self._anew(token)
            if piece is None:
                self._held.append(token)
            else:
                self._held.clear()
                text += piece
        return text

    def name(self, token: int) -> str:
        """Returns the tokenizer's name of a token."""
        return str(self._tokenizer.id_to_token(token) or "")

    def _anew(self, token: int) -> str:
        """Restarts decoding after invalid bytes, for which the library raises an error.

        Earlier tokens are not decoded together with these bytes, because they would become invalid
        too. Their text was already returned.
        """
        self._stream = DecodeStream([token], skip_special_tokens=False)
        return str(self._tokenizer.decode([*self._held, token], skip_special_tokens=False))

    def finish(self) -> str:
        """Returns the text of an incomplete character at the end."""
        return (
            str(self._tokenizer.decode(self._held, skip_special_tokens=False)) if self._held else ""
        )


class Stops:
    """Ends a text before the first stop string, independent of token boundaries."""

    def __init__(self, strings: Sequence[str], *, included: bool = False) -> None:
        """
        Args:
            included: if True, the text ends after the stop string.
        """
        self._strings = [text for text in strings if text]
        self._included = included
        self.matched: str | None = None
        """Stop string that ended the text."""
        self._held: str = ""
        """End of the text, which may be the beginning of a stop string."""

    def add(self, text: str) -> tuple[str, bool]:
        """Returns the text that certainly precedes any stop string, and True if a stop string was
        found.
        """
        if not self._strings:
            return text, False
        text = self._held + text
        matches = [
            (place + len(stop), place, stop)
            for stop in self._strings
            if (place := text.find(stop)) >= 0
        ]
        if matches:
            # Uses the first complete stop string, so the result does not depend on how the text is
            # split.
            self._held = ""
            end, begin, self.matched = min(matches)
            return text[: end if self._included else begin], True
        overlap = max(_overlap(text, stop) for stop in self._strings)
        self._held = text[len(text) - overlap :]
        return text[: len(text) - overlap], False

    def finish(self) -> str:
        """Returns the held text after the text ended without a stop string."""
        text, self._held = self._held, ""
        return text


def _overlap(text: str, stop: str) -> int:
    """Returns how many characters at the end of the text are the beginning of the stop string."""
    for size in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:size]):
            return size
    return 0
