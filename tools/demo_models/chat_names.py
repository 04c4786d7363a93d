"""Names of cities and people for `tiny-chat`, both real and invented.

A model this small memorises names if it can. Only an unlimited supply of names teaches it to copy.
"""

import string
from collections.abc import Sequence
from random import Random

from tools.demo_models.data_file import DataFile
from tools.demo_models.names import (
    CITIES,
    FIRST_NAMES,
    HELD_OUT_CITIES,
    HELD_OUT_FIRST_NAMES,
    LAST_NAMES,
    LONG_PLACES,
    Inventor,
    syllables,
)

_DATA = DataFile("chat_names")

UNSEEN_CITIES = (*HELD_OUT_CITIES, *_DATA.entries("unseen_cities"))
UNSEEN_PEOPLE = HELD_OUT_FIRST_NAMES

_FIRST_WORDS = _DATA.entries("first_words")
_LAST_WORDS = _DATA.entries("last_words")
_MIDDLES = _DATA.entries("middles")
_ACCENTED = _DATA.read("accented", dict[str, str])


class Namer:
    """Draws names for the training, never names that are used for measuring.

    `pieces` are the letters-only tokens of a vocabulary. A name made of them has a sequence of
    tokens that no other text has, so the model must copy each of them.
    """

    def __init__(self, pieces: Sequence[str] = ()) -> None:
        self._first = [piece for piece in pieces if piece.istitle()]
        self._later = [piece for piece in pieces if piece.islower()]
        self._city = Inventor(CITIES)
        self._person = Inventor(FIRST_NAMES)

    def city(self, rng: Random) -> str:
        """Returns a real city in 30 % of cases, otherwise an invented one. A name has one to three
        words.
        """
        while True:
            name = self._drawn_city(rng)
            if not set(name.split()) & _UNSEEN:
                return name

    def person(self, rng: Random) -> str:
        """Returns a first name, occasionally with a family name."""
        while True:
            draw = rng.random()
            if draw < 0.4:
                name = rng.choice(FIRST_NAMES)
            elif draw < 0.65:
                name = self._person(rng)
            else:
                name = self._word(rng)
            if rng.random() < 0.06:
                name += " " + rng.choice(LAST_NAMES)
            if not set(name.split()) & _UNSEEN:
                return _accented(rng, name)

    def _drawn_city(self, rng: Random) -> str:
        draw = rng.random()
        if draw < 0.3:
            return rng.choice(CITIES if draw < 0.24 else LONG_PLACES)
        first, second = (self._one_word(rng) for _ in range(2))
        if draw < 0.8:
            return _accented(rng, first)
        forms = (
            f"{rng.choice(_FIRST_WORDS)} {first}",
            f"{first} {rng.choice(_LAST_WORDS)}",
            f"{first}{rng.choice(' -')}{second}",
            f"{first} {rng.choice(_MIDDLES)} {second}",
        )
        return rng.choices(forms, (4, 1, 1, 1))[0]

    def _one_word(self, rng: Random) -> str:
        return self._city(rng) if rng.random() < 0.35 else self._word(rng)

    def _word(self, rng: Random) -> str:
        """Returns a capitalised word of pieces, of syllables or of random letters."""
        draw = rng.random()
        if draw < 0.5 and self._first:
            later = rng.choices(self._later, k=rng.choice((1, 1, 2, 2, 3)))
            return rng.choice(self._first) + "".join(later)
        if draw < 0.75:
            return syllables(rng, rng.choice((1, 2, 2, 3))).capitalize()
        return letters(rng, rng.randint(3, 9)).capitalize()


def letters(rng: Random, count: int) -> str:
    """Returns `count` random lower-case letters."""
    return "".join(rng.choices(string.ascii_lowercase, k=count))


def lines(rng: Random, namer: Namer, vocabulary: Sequence[str]) -> str:
    """Returns one to six words to be repeated: known words, names and nonsense.

    Nonsense never comes first, because its tokens would change with the space before it.
    """
    drawn: list[str] = []
    for at in range(rng.choice((1, 2, 3, 4, 6))):
        kind = rng.random() * (1 if at else 0.75)
        if kind < 0.45:
            drawn.append(rng.choice(vocabulary))
        elif kind < 0.75:
            drawn.append(namer.person(rng))
        elif kind < 0.9:
            drawn.append(letters(rng, rng.randint(2, 6)))
        else:
            drawn.append(str(rng.randint(0, 999)))
    return " ".join(drawn)


def _accented(rng: Random, name: str) -> str:
    """Returns the name, in 5 % of cases with accents on some of its letters."""
    if rng.random() > 0.05:
        return name
    return "".join(
        rng.choice(_ACCENTED[letter]) if letter in _ACCENTED and rng.random() < 0.4 else letter
        for letter in name
    )


_UNSEEN = {word for name in (*UNSEEN_CITIES, *UNSEEN_PEOPLE) for word in name.split()} - {
    *_FIRST_WORDS
}
