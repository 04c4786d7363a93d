"""A text in pieces that are spoken one after the other."""

import re
from collections.abc import Iterator

LONGEST = 200
"""Most characters of a piece: models were trained on a sentence or two, and the first piece is what
a listener waits for."""
_SHORT = 24
"""A sentence of fewer characters is spoken with the next: what ends in a full stop may be an
abbreviation, and a word alone is spoken badly."""

_ENDS = re.compile(r"""[.!?…]++["'”’»)\]]*+\s++|[。！？]++[」』”’]*+|\n++""")  # noqa: RUF001
_PAUSES = re.compile(r"[,;:–—]\s|[，、；：]")  # noqa: RUF001


def pieces(text: str) -> list[str]:
    """Sentences of at most `LONGEST` characters, short ones together, white space as one blank.

    A longer sentence is cut at its last pause that fits, else between two words, else anywhere.
    """
    found: list[str] = []
    for sentence in _sentences(text):
        for piece in _cut(sentence):
            fits = found and len(found[-1]) < _SHORT and len(found[-1]) + len(piece) < LONGEST
            if fits:
                found[-1] += " " + piece
            else:
                found.append(piece)
    return found


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
