"""A small template language that the four data generators share.

A template is a sentence with `{slot}` holes and `(one|two|)` alternatives, which may nest.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random

Slot = Sequence[str] | Callable[[Random], str]

_ALTERNATIVES = re.compile(r"\(([^()]*)\)")
_SLOT = re.compile(r"\{(\w+)\}")
_SPACES = re.compile(r" {2,}")
_SPACE_BEFORE_STOP = re.compile(r" +([.,!?;:])")


def words(text: str) -> tuple[str, ...]:
    """The words of a block of text, as a list that reads well in source."""
    return tuple(text.split())


def entries(text: str) -> tuple[str, ...]:
    """The comma-separated entries of a block of text; an entry may have spaces."""
    return tuple(" ".join(entry.split()) for entry in text.split(","))


def expand(template: str, rng: Random, slots: Mapping[str, Slot]) -> str:
    """One sentence of the template: alternatives are chosen first, then slots, outermost first."""
    text = template
    while "(" in text:
        text = _ALTERNATIVES.sub(lambda found: rng.choice(found[1].split("|")), text)
    while "{" in text:
        text = _SLOT.sub(lambda found: _fill(slots[found[1]], rng), text)
        while "(" in text:
            text = _ALTERNATIVES.sub(lambda found: rng.choice(found[1].split("|")), text)
    return tidy(text)


def every(template: str) -> Iterator[str]:
    """Every way to choose the template's alternatives; slots stay as they are."""
    found = _ALTERNATIVES.search(template)
    if found is None:
        yield tidy(template)
        return
    for choice in found[1].split("|"):
        yield from every(template[: found.start()] + choice + template[found.end() :])


def tidy(text: str) -> str:
    """Closes the gaps that an empty alternative leaves."""
    return _SPACE_BEFORE_STOP.sub(r"\1", _SPACES.sub(" ", text)).strip()


def capitalise(text: str) -> str:
    """Upper-cases the first letter alone; `str.capitalize` would lower-case the names."""
    return text[:1].upper() + text[1:]


def _fill(slot: Slot, rng: Random) -> str:
    return slot(rng) if callable(slot) else rng.choice(slot)
