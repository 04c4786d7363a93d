"""Text of an answer while it is written, for readers that are generators.

A reader is a generator of `Steps`. It yields if it needs more text, and continues after text was
added. Its result never depends on how the text is split into pieces.
"""

import json
import re
from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

from stoker.models.chat.answers.call_formats.calls import MalformedCallError

Value = TypeVar("Value")
Steps = Generator[None, None, Value]
Emit = Callable[[str], None]

_COMMITTED = 4096
_SPACE = re.compile(r"\s*")
_PLAIN = re.compile(r'[^"\\\x00-\x1f]*')
_WORD = re.compile(r"[A-Za-z0-9+\-.]+")
_NO_JSON = {
    **{"NaN": "null", "Infinity": "null", "-Infinity": "null"},
    **{"True": "true", "False": "false", "None": "null"},
}


class CutError(MalformedCallError):
    """The text ended within a call."""


class Source:
    """Text that grows at its end and is read from its start."""

    def __init__(self) -> None:
        self.text = ""
        self.at = 0
        """The index of the next character in `text`."""
        self.ended = False
        self._dropped = 0
        """The number of characters before `text`."""

    def feed(self, text: str) -> None:
        self.text += text

    @property
    def place(self) -> int:
        """The index of the next character in the whole text."""
        return self._dropped + self.at

    def back(self, place: int) -> None:
        """Moves back to a place after the last commit."""
        self.at = place - self._dropped

    def commit(self) -> None:
        """Drops the text that was read, if it is long: this copies the rest."""
        if self.at < len(self.text) and self.at < _COMMITTED:
            return
        self._dropped += self.at
        self.text, self.at = self.text[self.at :], 0

    def more(self) -> Steps[bool]:
        """Waits for more text. Returns False at the end."""
        if self.ended:
            return False
        yield
        return True

    def need(self) -> Steps[str]:
        """Returns the next character. Raises `CutError` at the end of the text."""
        while self.at >= len(self.text):
            if not (yield from self.more()):
                raise CutError
        return self.text[self.at]

    def skip_space(self) -> Steps[None]:
        while True:
            match = _SPACE.match(self.text, self.at)
            self.at = match.end() if match else self.at
            if self.at < len(self.text) or not (yield from self.more()):
                return

    def starts(self, literals: Sequence[str]) -> Steps[str | None]:
        """Returns the longest literal that comes next, or None."""
        while True:
            rest = self.text[self.at : self.at + max(map(len, literals), default=0)]
            waits = any(
                len(literal) > len(rest) and literal.startswith(rest) for literal in literals
            )
            if not waits or not (yield from self.more()):
                matches = [literal for literal in literals if rest.startswith(literal)]
                return max(matches, key=len) if matches else None

    def literal(self, text: str) -> Steps[None]:
        """Reads a literal; white space in it and around it is optional.

        Raises `MalformedCallError` for another text.
        """
        yield from self.skip_space()
        for word in text.split():
            if not (yield from self.starts([word])):
                raise CutError if self.at >= len(self.text) else MalformedCallError
            self.at += len(word)
            yield from self.skip_space()

    def until(self, literals: Sequence[str], most: int | None = None) -> Steps[str]:
        """Returns the text before the first of some literals, which is left unread.

        Raises `MalformedCallError` if none follows, or none within `most` characters.
        """
        begin = self.at
        while True:
            places = [
                place for literal in literals if (place := self.text.find(literal, self.at)) >= 0
            ]
            if places:
                end = min(places)
                if most is not None and end - begin > most:
                    raise MalformedCallError
                before, self.at = self.text[begin:end], end
                return before
            if most is not None and len(self.text) - begin > most + max(map(len, literals)):
                raise MalformedCallError
            self.at = max(begin, len(self.text) - max(map(len, literals)) + 1)
            if not (yield from self.more()):
                self.at = len(self.text)
                raise CutError

    # --- JSON ---

    def json_string(self, check: Emit | None = None) -> Steps[str]:
        """Reads a JSON string. Raises `MalformedCallError`.

        Args:
            check: called with the beginning of the string. Raises if it is wrong.
        """
        if (yield from self.need()) != '"':
            raise MalformedCallError
        parts: list[str] = []

        def emit(text: str) -> None:
            parts.append(text)
            if check:
                check("".join(parts))

        yield from self.json_text(emit)
        try:
            return str(json.loads("".join(parts)))
        except ValueError as error:
            raise MalformedCallError from error

    def json_value(self) -> Steps[str]:
        """Reads a JSON value and returns its text without checking it. Raises `CutError`."""
        parts: list[str] = []
        yield from self.json_text(parts.append)
        return "".join(parts)

    def json_text(self, emit: Emit) -> Steps[None]:
        """Reads a JSON value and emits its text as it arrives. Replaces parts that are invalid in
        JSON.

        Raises `CutError`, or `MalformedCallError` if no value comes next.
        """
        depth = 0
        while True:
            character = yield from self.need()
            if character == '"':
                yield from self._json_string(emit)
            elif character in "{[":
                depth += 1
                self.at += 1
                emit(character)
            elif character in "}]":
                if depth == 0:
                    raise MalformedCallError
                depth -= 1
                self.at += 1
                emit(character)
            elif _WORD.match(character):
                yield from self._json_word(emit)
            elif depth:
                self.at += 1
                emit(character)
            else:
                raise MalformedCallError
            if depth == 0:
                return

    def _json_string(self, emit: Emit) -> Steps[None]:
        self.at += 1
        emit('"')
        while True:
            match = _PLAIN.match(self.text, self.at)
            if match and match[0]:
                self.at = match.end()
                emit(match[0])
            character = yield from self.need()
            if character == "\\":
                while self.at + 1 >= len(self.text):
                    if not (yield from self.more()):
                        raise CutError
                emit(self.text[self.at : self.at + 2])
                self.at += 2
                continue
            if character == '"':
                self.at += 1
                emit('"')
                return
            if character < " ":
                # JSON requires control characters to be escaped.
                self.at += 1
                emit(json.dumps(character)[1:-1])

    def _json_word(self, emit: Emit) -> Steps[None]:
        begin = self.at
        while True:
            match = _WORD.match(self.text, self.at)
            self.at = match.end() if match else self.at
            if self.at < len(self.text) or not (yield from self.more()):
                word = self.text[begin : self.at]
                emit(_NO_JSON.get(word, word))
                return
