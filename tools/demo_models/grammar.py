"""A small template language that the data generators share.

A template is a sentence with `{slot}` placeholders and `(one|two|)` alternatives, which may nest.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from random import Random

Slot = Sequence[str] | Callable[[Random], str]

_ALTERNATIVES = re.compile(r"\(([^()]*)\)")
_SLOT = re.compile(r"\{(\w+)\}")
_SPACES = re.compile(r" {2,}")
_SPACE_BEFORE_STOP = re.compile(r" +([.,!?;:])")


def words(text: str) -> tuple[str, ...]:
    """Returns the words of a block of text."""
    return tuple(text.split())


def entries(text: str) -> tuple[str, ...]:
    """Returns the comma-separated entries of a block of text. An entry may contain spaces."""
    return tuple(" ".join(entry.split()) for entry in text.split(","))


def expand(template: str, rng: Random, slots: Mapping[str, Slot]) -> str:
    """Returns one sentence of the template. Alternatives are chosen first, then slots, outermost
    first.
    """
    text = template
    while "(" in text:
        text = _ALTERNATIVES.sub(lambda match: rng.choice(match[1].split("|")), text)
    while "{" in text:
        text = _SLOT.sub(lambda match: _fill(slots[match[1]], rng), text)
        while "(" in text:
            text = _ALTERNATIVES.sub(lambda match: rng.choice(match[1].split("|")), text)
    return tidy(text)


def every(template: str) -> Iterator[str]:
    """Yields all choices of the template's alternatives. Slots are kept."""
    match = _ALTERNATIVES.search(template)
    if match is None:
        yield tidy(template)
        return
    for choice in match[1].split("|"):
        yield from every(template[: match.start()] + choice + template[match.end() :])


def all_forms(templates: Iterable[str]) -> tuple[str, ...]:
    """Returns all choices of the alternatives of all templates. Slots are kept."""
    return tuple(form for template in templates for form in every(template))


def tidy(text: str) -> str:
    """Removes the gaps that an empty alternative leaves."""
    return _SPACE_BEFORE_STOP.sub(r"\1", _SPACES.sub(" ", text)).strip()


def capitalise(text: str) -> str:
    """Capitalises only the first letter. `str.capitalize` would convert names to lower case."""
    return text[:1].upper() + text[1:]


def _fill(slot: Slot, rng: Random) -> str:
    return slot(rng) if callable(slot) else rng.choice(slot)
