"""Reads the input of a custom tool out of a call's arguments while they are written."""

import json
import re

_OPENING = re.compile(r'\s*\{\s*"input"\s*:\s*"')
_CHARACTERS = re.compile(r'(?:[^"\\]|\\u[0-9a-fA-F]{4}|\\[^u])*')
_HALF_PAIR = re.compile(r"(?:[^\\]|\\.)*?(?=(?:\\u[dD][89abAB][0-9a-fA-F]{2})?\Z)", re.DOTALL)


class CustomInput:
    """Decodes arguments of the form `{"input": "…"}`. Other arguments are the input themselves."""

    def __init__(self) -> None:
        self._arguments = ""
        self._at = -1
        """Place of the next character of the input. -1: its opening quote is not yet known."""
        self._text: list[str] = []

    def add(self, piece: str) -> str:
        """Returns the next text of the input, which may be empty."""
        self._arguments += piece
        if self._at < 0:
            match = _OPENING.match(self._arguments)
            if match is None:
                return ""
            self._at = match.end()
        match = _CHARACTERS.match(self._arguments, self._at)
        written = match[0] if match else ""
        if whole := _HALF_PAIR.match(written):
            written = whole[0]
        self._at += len(written)
        text = _decoded(written)
        self._text.append(text)
        return text

    def finish(self) -> str:
        """Returns the rest of the input: all arguments if they had another form."""
        if self._at >= 0:
            return ""
        self._text.append(self._arguments)
        return self._arguments

    @property
    def text(self) -> str:
        return "".join(self._text)


def _decoded(written: str) -> str:
    try:
        text: str = json.loads(f'"{written}"', strict=False)
    except ValueError:
        return written
    # Half of a surrogate pair is not a character and cannot be encoded.
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
