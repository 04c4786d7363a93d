"""Draws sentences with marked persons, places and organisations from data/tagger.toml.

A name is marked as `<PER Maria Schmidt>`. `tagger.parse` removes the markup.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from tools.demo_models import names
from tools.demo_models.data_file import DataFile
from tools.demo_models.grammar import Slot, capitalise, expand
from tools.demo_models.names import Inventor, capitals, syllables

_DATA = DataFile("tagger")

TEMPLATES = _DATA.entries("templates")
PLAIN = _DATA.entries("plain")
HELD_OUT_TEMPLATES = _DATA.entries("held_out_templates")
OPENINGS = _DATA.entries("openings")
ENDINGS = _DATA.entries("endings")
HAND_WRITTEN = _DATA.entries("hand_written")
NOUNS = _DATA.entries("nouns")
ADJECTIVES = _DATA.entries("adjectives")
TITLES = _DATA.entries("titles")
_FAMILY_PREFIXES = _DATA.entries("family_prefixes")
_PLACE_PREFIXES = _DATA.entries("place_prefixes")
_PLACE_SUFFIXES = _DATA.entries("place_suffixes")
_COMPANY_KINDS = _DATA.entries("company_kinds")
_PLACE_FRAMES = _DATA.entries("place_frames")
_WHEN = "|".join(_DATA.entries("when"))
_WORDS: dict[str, Slot] = {
    slot: _DATA.entries(key)
    for slot, key in {
        "noun": "nouns",
        "verb": "verbs",
        "pverb": "verbs",
        "bare": "bare_verbs",
        "adv": "adverbs",
        "adj": "adjectives",
        "unit": "units",
        "pnoun": "personal_things",
        "onoun": "buildings",
        "lnoun": "sights",
        "product": "products",
        "art": "arts",
        "family": "family",
        "shop": "shops",
        "company": "company_words",
        "place": "place_words",
        "padj": "person_adjectives",
        "ladj": "place_adjectives",
        "role": "roles",
        "crole": "company_roles",
        "srole": "state_roles",
        "nat": "nationalities",
        "subject": "subjects",
        "day": "days",
        "month": "months",
        "Title": "titles",
        "Role": "role_titles",
    }.items()
}


@dataclass(frozen=True)
class Names:
    """Names that one part of the data may use."""

    first: Sequence[str]
    last: Sequence[str]
    cities: Sequence[str]
    countries: Sequence[str]
    places: Sequence[str]
    companies: Sequence[str]
    organisations: Sequence[str]

    @staticmethod
    def known() -> "Names":
        """Returns the training names."""
        return Names(
            names.FIRST_NAMES,
            names.LAST_NAMES,
            names.CITIES,
            names.COUNTRIES,
            (*names.LONG_PLACES, *names.FEATURES),
            (*names.COMPANIES, *names.ACRONYMS),
            names.LONG_ORGANISATIONS,
        )

    @staticmethod
    def unseen() -> "Names":
        """Returns the test names."""
        return Names(
            names.HELD_OUT_FIRST_NAMES,
            names.HELD_OUT_LAST_NAMES,
            names.HELD_OUT_CITIES,
            names.HELD_OUT_COUNTRIES,
            names.HELD_OUT_PLACES,
            names.HELD_OUT_COMPANIES,
            names.HELD_OUT_ORGANISATIONS,
        )


class Sentences:
    """Draws marked sentences. `invented` is the share of invented names.

    Half of the invented names are modelled on names of their own kind. The others are modelled on
    all kinds, are random syllables, or are plain words as in Apple, Shell, Young and Price. Only
    the sentence reveals their kind.
    """

    def __init__(self, known: Names, *, invented: float) -> None:
        self._known = known
        self._invented = invented
        kinds = {
            "person": [*known.first, *known.last],
            "place": [*known.cities, *known.countries],
            "company": known.companies,
        }
        self._inventors = {kind: Inventor(examples) for kind, examples in kinds.items()}
        self._any_kind = Inventor([name for examples in kinds.values() for name in examples])
        self._slots: dict[str, Slot] = {
            "P": self._person,
            "P1": lambda rng: f"<PER {self._first(rng)}>",
            "Last": lambda rng: f"<PER {self._last(rng)}>",
            "L": self._place,
            "City": lambda rng: f"<LOC {self._city(rng)}>",
            "Land": lambda rng: f"<LOC {self._name(rng, known.countries, 'place')}>",
            "O": self._organisation,
            "when": (f"({_WHEN})",),
            "year": lambda rng: str(rng.randint(1850, 2030)),
            "num": lambda rng: str(rng.randint(2, 31) * rng.choice((1, 1, 1, 10, 100))),
            **_WORDS,
        }

    def draw(self, rng: Random, templates: Sequence[str]) -> str:
        """Returns one sentence of one of the templates, with its names marked."""
        return capitalise(expand(rng.choice(templates), rng, self._slots))

    def draw_longer(self, rng: Random, templates: Sequence[str]) -> str:
        """Returns a sentence as `draw` does, sometimes with a clause before or after it, or
        both.
        """
        template = rng.choice(templates)
        if rng.random() < 0.15:
            template = f"{rng.choice(OPENINGS)} {_lowered(template)}"
        if rng.random() < 0.2:
            template = f"{template.rstrip('.?')} {rng.choice(ENDINGS)}."
        return capitalise(expand(template, rng, self._slots))

    def _name(self, rng: Random, known: Sequence[str], kind: str) -> str:
        if rng.random() >= self._invented:
            return rng.choice(known)
        source = rng.random()
        if source < 0.15:
            return rng.choice(rng.choice((NOUNS, ADJECTIVES))).capitalize()
        if source < 0.3:
            return syllables(rng, rng.choice((1, 2, 2, 3))).capitalize()
        return (self._inventors[kind] if source < 0.75 else self._any_kind)(rng)

    def _first(self, rng: Random) -> str:
        name = self._name(rng, self._known.first, "person")
        return f"{name}-{rng.choice(self._known.first)}" if rng.random() < 0.03 else name

    def _last(self, rng: Random) -> str:
        name = self._name(rng, self._known.last, "person")
        return rng.choice(_FAMILY_PREFIXES) + name if rng.random() < 0.06 else name

    def _city(self, rng: Random) -> str:
        return self._name(rng, self._known.cities, "place")

    def _person(self, rng: Random) -> str:
        first, last, shape = self._first(rng), self._last(rng), rng.random()
        initial = rng.choice("ABCDEFGHJKLMNPRSTVW")
        for limit, text in (
            (0.30, f"<PER {first}>"),
            (0.34, f"<PER {last}>"),
            (0.37, f"<PER {initial}. {last}>"),
            (0.40, f"<PER {first} {initial}. {last}>"),
            (0.45, f"{rng.choice(TITLES)} <PER {first} {last}>"),
        ):
            if shape < limit:
                return text
        return f"<PER {first} {last}>"

    def _place(self, rng: Random) -> str:
        city, shape = self._city(rng), rng.random()
        for limit, text in (
            (0.18, rng.choice(self._known.places)),
            (0.25, f"{rng.choice(_PLACE_PREFIXES)} {city}"),
            (0.30, f"{rng.choice((city, self._last(rng)))} {rng.choice(_PLACE_SUFFIXES)}"),
            (0.50, self._name(rng, self._known.countries, "place")),
        ):
            if shape < limit:
                return f"<LOC {text}>"
        return f"<LOC {city}>"

    def _organisation(self, rng: Random) -> str:
        company = self._name(rng, self._known.companies, "company")
        base = rng.choice((company, company, self._last(rng), self._city(rng)))
        partner = rng.choice((self._last(rng), "Sons", "Co", "Partners"))
        shape = rng.random()
        for limit, text in (
            (0.50, company),
            (0.54, capitals(rng) if self._invented else company),
            (0.66, rng.choice(self._known.organisations)),
            (0.72, f"{rng.choice(rng.choice((ADJECTIVES, NOUNS)))} {rng.choice(NOUNS)}".title()),
            (0.85, f"{base} {rng.choice(_COMPANY_KINDS)}"),
            (0.88, f"{self._last(rng)} & {partner}"),
        ):
            if shape < limit:
                return f"<ORG {text}>"
        return f"<ORG {rng.choice(_PLACE_FRAMES).format(self._city(rng))}>"


def _lowered(template: str) -> str:
    """Returns the template for use inside a sentence: `The mayor` becomes `the mayor`."""
    return _OPENING_WORD.sub(lambda match: match[0].lower(), template)


_OPENING_WORD = re.compile(
    r"^(\((?!I[|)])[^(){}]*\)|(The|A|An|In|On|It|There|This|My|According|After|Before)\b)"
)
