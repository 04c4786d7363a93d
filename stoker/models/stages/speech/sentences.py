"""Splits a text into pieces that are spoken in sequence."""

import re
from collections.abc import Iterator

LONGEST = 200
"""Maximum number of characters in a piece. Models were trained on one or two sentences, and
listeners wait for the first piece.
"""
_SHORT = 24
"""Minimum number of characters of a separate sentence. A shorter one is joined with the next: a
full stop may end an abbreviation, and models speak single words badly.
"""

_ENDS = re.compile(r"""[.!?…]++["'”’»)\]]*+\s++|[。！？]++[」』”’]*+|\n++""")  # noqa: RUF001
_PAUSES = re.compile(r"[,;:–—]\s|[，、；：]")  # noqa: RUF001


def pieces(text: str) -> list[str]:
    """Returns sentences of at most `LONGEST` characters. Short ones are joined, and white space
    becomes one blank.

    A longer sentence is cut at its last pause that fits, else between two words, else anywhere.
    """
    parts: list[str] = []
    for sentence in _sentences(text):
        for piece in _cut(sentence):
            fits = parts and len(parts[-1]) < _SHORT and len(parts[-1]) + len(piece) < LONGEST
            if fits:
                parts[-1] += " " + piece
            else:
                parts.append(piece)
    return parts


def _sentences(text: str) -> Iterator[str]:
    start = 0
    for end in (*(match.end() for match in _ENDS.finditer(text)), len(text)):
        if sentence := " ".join(text[start:end].split()):
            yield sentence
        start = end


def _cut(sentence: str) -> Iterator[str]:
    while len(sentence) > LONGEST:
        head = sentence[:LONGEST]
        pauses = [match.end() for match in _PAUSES.finditer(head)]
        at = pauses[-1] if pauses else head.rfind(" ") + 1 or LONGEST
        yield sentence[:at].strip()
        sentence = sentence[at:].strip()
    if sentence:
        yield sentence
