"""From tokens to text, as they come: characters and stop strings may span several tokens."""

from collections.abc import Sequence
from typing import Any

from tokenizers.decoders import DecodeStream


class Detokenizer:
    """The text of a growing sequence: a character appears once all of its bytes are there."""

    def __init__(self, tokenizer: Any, hidden: frozenset[int]) -> None:
        """
        Args:
            tokenizer: of the `tokenizers` library.
            hidden: tokens that stand for nothing in the text.
        """
        self._tokenizer = tokenizer
        self._hidden = hidden
        self._stream = DecodeStream(skip_special_tokens=False)
        self._held: list[int] = []

    def add(self, tokens: Sequence[int]) -> str:
        """The characters that became complete."""
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
        """What the tokenizer calls a token."""
        return str(self._tokenizer.id_to_token(token) or "")

    def _anew(self, token: int) -> str:
        """Begin again where bytes are no text and the library gives up.

        Read with them, those before them are none either, and their text has been told already.
        """
        self._stream = DecodeStream([token], skip_special_tokens=False)
        return str(self._tokenizer.decode([*self._held, token], skip_special_tokens=False))

    def finish(self) -> str:
        """What is left of a character whose bytes never came."""
        return (
            str(self._tokenizer.decode(self._held, skip_special_tokens=False)) if self._held else ""
        )


class Stops:
    """Ends a text before the first stop string, wherever the tokens' borders are."""

    def __init__(self, strings: Sequence[str], *, included: bool = False) -> None:
        """
        Args:
            included: the text ends behind the stop string.
        """
        self._strings = [one for one in strings if one]
        self._included = included
        self._held: str = ""
        """The end of the text, which may turn out to begin a stop string."""

    def add(self, text: str) -> tuple[str, bool]:
        """What is certain to come before any stop string, and whether one was found."""
        if not self._strings:
            return text, False
        text = self._held + text
        found = [
            (place + len(one), place) for one in self._strings if (place := text.find(one)) >= 0
        ]
        if found:
            # The first that is complete: wherever the pieces' borders are, it is the same one.
            self._held = ""
            end, begin = min(found)
            return text[: end if self._included else begin], True
        kept = max(_overlap(text, one) for one in self._strings)
        self._held = text[len(text) - kept :]
        return text[: len(text) - kept], False

    def finish(self) -> str:
        """What was held back, when the text has ended without a stop string."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """How many characters at the end of the text the stop string begins with."""
    for size in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:size]):
            return size
    return 0
