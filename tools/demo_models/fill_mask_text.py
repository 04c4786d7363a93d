"""States the facts of data/fill_mask.toml in sentences for the fill-mask model."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from string import ascii_lowercase
from typing import NamedTuple

import msgspec

from tools.demo_models.data_file import DataFile
from tools.demo_models.grammar import every


class Family(NamedTuple):
    """A kind of fact. Each row fills each frame, and `[MASK]` stands for the row's last word.

    In a frame that starts with `<`, `[MASK]` stands for the row's first word.
    """

    frames: Sequence[str]
    rows: Sequence[tuple[str, ...]]


class Fact(NamedTuple):
    """A sentence with one `[MASK]` and the correct word for it."""

    text: str
    word: str


class _FamilyData(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A family of the data file. It has `rows`, `groups`, `ring` or `computed`."""

    frames: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...] = ()
    groups: dict[str, tuple[str, ...]] = {}
    ring: tuple[str, ...] = ()
    computed: str = ""

    def family(self) -> Family:
        """Returns the family. Raises KeyError for an unknown name in `computed`."""
        return Family(self.frames, self._all_rows())

    def _all_rows(self) -> Sequence[tuple[str, ...]]:
        if self.computed:
            return _COMPUTED[self.computed]()
        if self.groups:
            return [(thing, group) for group, things in self.groups.items() for thing in things]
        if self.ring:
            return list(zip(self.ring, [*self.ring[1:], self.ring[0]], strict=True))
        return self.rows


_DATA = DataFile("fill_mask")
NUMBERS = _DATA.entries("numbers")
PREFIXES = _DATA.entries("prefixes")


def _successors() -> list[tuple[str, ...]]:
    return list(pairwise(NUMBERS))


def _letters() -> list[tuple[str, ...]]:
    return list(pairwise(ascii_lowercase))


def _sums() -> list[tuple[str, ...]]:
    return [(NUMBERS[a], NUMBERS[b], NUMBERS[a + b]) for a in range(11) for b in range(11)]


def _differences() -> list[tuple[str, ...]]:
    return [(NUMBERS[a], NUMBERS[b], NUMBERS[a - b]) for a in range(13) for b in range(a + 1)]


def _products() -> list[tuple[str, ...]]:
    pairs = ((a, b) for a in range(1, 11) for b in range(1, 11) if a * b <= 20)
    return [(NUMBERS[a], NUMBERS[b], NUMBERS[a * b]) for a, b in pairs]


def _halves() -> list[tuple[str, ...]]:
    return [(NUMBERS[2 * half], NUMBERS[half]) for half in range(1, 11)]


_COMPUTED: Mapping[str, Callable[[], list[tuple[str, ...]]]] = {
    "successors": _successors,
    "letters": _letters,
    "sums": _sums,
    "differences": _differences,
    "products": _products,
    "halves": _halves,
}

FAMILIES = tuple(data.family() for data in _DATA.read("families", tuple[_FamilyData, ...]))
STATED = tuple(Fact(text, word) for text, word in _DATA.read("stated", tuple[tuple[str, str], ...]))
"""Promises of the card. None of these sentences is trained on. The facts are trained in other
frames.
"""


def statements(family: Family) -> Iterator[list[Fact]]:
    """Yields all sentences of each row of the family."""
    for row in family.rows:
        stated: list[Fact] = []
        for frame in family.frames:
            word = row[0] if frame.startswith("<") else row[-1]
            # Several words cannot be the single token that [MASK] stands for.
            if " " not in word:
                forms = every(frame.removeprefix("< "))
                stated += [Fact(form.format(*row), word) for form in forms]
        yield stated
