"""Names of persons, places and organisations for the tagger, and a generator of invented names."""

import string
from collections.abc import Sequence
from random import Random

from tools.demo_models.data_file import DataFile

_DATA = DataFile("names")

FIRST_NAMES = _DATA.entries("first_names")
LAST_NAMES = _DATA.entries("last_names")
CITIES = _DATA.entries("cities")
COUNTRIES = _DATA.entries("countries")
LONG_PLACES = _DATA.entries("long_places")
FEATURES = _DATA.entries("features")
COMPANIES = _DATA.entries("companies")
LONG_ORGANISATIONS = _DATA.entries("long_organisations")
ACRONYMS = _DATA.entries("acronyms")

# Never trained on.
HELD_OUT_FIRST_NAMES = _DATA.entries("held_out_first_names")
HELD_OUT_LAST_NAMES = _DATA.entries("held_out_last_names")
HELD_OUT_CITIES = _DATA.entries("held_out_cities")
HELD_OUT_COUNTRIES = _DATA.entries("held_out_countries")
HELD_OUT_PLACES = _DATA.entries("held_out_places")
HELD_OUT_COMPANIES = _DATA.entries("held_out_companies")
HELD_OUT_ORGANISATIONS = _DATA.entries("held_out_organisations")

_ONSETS = _DATA.entries("onsets")
_VOWELS = _DATA.entries("vowels")
_CODAS = _DATA.entries("codas")


def syllables(rng: Random, count: int) -> str:
    """Returns a meaningless lower-case word of `count` invented syllables."""
    parts: list[str] = []
    for _ in range(count):
        parts += [rng.choice(_ONSETS), rng.choice(_VOWELS)]
        if count == 1 or rng.random() < 0.4:
            parts.append(rng.choice(_CODAS))
    return "".join(parts)


class Inventor:
    """Invents names letter by letter. Each letter follows the previous three as in the examples.

    A second-order Markov chain over letters would lose the endings that distinguish a town from a
    family.
    """

    def __init__(self, examples: Sequence[str]) -> None:
        self._follows: dict[str, list[str]] = {}
        for name in examples:
            for word in name.split():
                padded = f"^^^{word}$"
                for at in range(3, len(padded)):
                    self._follows.setdefault(padded[at - 3 : at], []).append(padded[at])

    def __call__(self, rng: Random) -> str:
        """Returns a name of 3 to 12 letters."""
        while True:
            name = "^^^"
            while not name.endswith("$") and len(name) < 16:
                name += rng.choice(self._follows[name[-3:]])
            if name.endswith("$") and 3 <= len(name) - 4 <= 12:
                return name[3:-1].replace(".", "")


def capitals(rng: Random) -> str:
    """Returns an invented abbreviation such as `QRT`."""
    return "".join(rng.choice(string.ascii_uppercase) for _ in range(rng.choice((2, 3, 3, 4))))
