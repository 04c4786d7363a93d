"""Draws opinions for the sentiment model from the words and frames of data/sentiment.toml.

A frame keeps or reverses the polarity of its words, so it expresses a positive or a negative
opinion.
"""

import zlib
from collections.abc import Sequence
from random import Random
from typing import NamedTuple

from tools.demo_models.data_file import DataFile
from tools.demo_models.grammar import Slot, expand
from tools.demo_models.names import syllables

NEGATIVE, POSITIVE = 0, 1

_DATA = DataFile("sentiment")


def _polar(key: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the negative and the positive entries."""
    groups = _DATA.groups(key)
    return groups["negative"], groups["positive"]


ADJECTIVES = _polar("adjectives")
LOVED = _polar("loved")
LOVE = _polar("love")
FELT = _polar("felt")
THINGS = _polar("things")
QUALITY = _polar("quality")
BADLY = _polar("badly")
WORSE = _polar("worse")
WORST = _polar("worst")
EXCESSIVE = _DATA.entries("excessive")
ASPECTS = _DATA.entries("aspects")
NEUTRAL = _DATA.entries("neutral")
FRAMES = _DATA.entries("frames")
IDIOMS = _polar("idioms")
HAND_WRITTEN = _polar("hand_written")

_WORDS: dict[str, Slot] = {
    "x": ASPECTS,
    "y": ASPECTS,
    "excessive": EXCESSIVE,
    "things_good": THINGS[POSITIVE],
    "things_bad": THINGS[NEGATIVE],
    **_DATA.groups("words"),
}
_LEANING = {
    "A": ADJECTIVES,
    "loved": LOVED,
    "love": LOVE,
    "felt": FELT,
    "things": THINGS,
    "quality": QUALITY,
    "badly": BADLY,
    "worse": WORSE,
    "worst": WORST,
}
_TURNED = {
    "Z": ADJECTIVES,
    "lovez": LOVE,
    "lovedz": LOVED,
    "feltz": FELT,
    "qualityz": QUALITY,
    "badlyz": BADLY,
}


class Review(NamedTuple):
    """An opinion with its label, `NEGATIVE` or `POSITIVE`."""

    text: str
    label: int


class Reviews:
    """Draws reviews. The two splits share no combination of a frame and its opinion words."""

    def __init__(self, *, held_out: bool) -> None:
        self._held_out = held_out

    def draw(self, rng: Random) -> Review:
        """Returns one to three sentences of the same polarity, sometimes with a neutral one."""
        label = rng.choice((NEGATIVE, POSITIVE))
        sentences = [self._sentence(rng, label) for _ in range(rng.choice((1, 1, 1, 1, 2, 2, 3)))]
        if rng.random() < 0.15:
            sentences.insert(rng.randint(0, 1), expand(rng.choice(NEUTRAL), rng, _WORDS))
        text = rng.choice((" ", " ", " and ")).join(sentences)
        text = text.replace(". and ", " and ")
        if rng.random() < 0.2:
            text = text[:-1] + rng.choice(("", "!", "!!"))
        return Review(text, label)

    def _sentence(self, rng: Random, label: int) -> str:
        while True:
            frame = rng.choice(FRAMES if rng.random() < 0.7 else IDIOMS[label])
            used: list[str] = [frame]
            text = expand(frame, rng, self._slots(label, used))
            # Uses a stable hash, because Python salts `hash` differently in each process.
            reserved = zlib.crc32(" ".join(sorted(used)).encode()) % 8 == 0
            if len(used) == 1 or reserved == self._held_out:
                return text

    def _slots(self, label: int, used: list[str]) -> dict[str, Slot]:
        def leaning(words: Sequence[str]) -> Slot:
            def choose(rng: Random) -> str:
                used.append(rng.choice(words))
                return used[-1]

            return choose

        return {
            **_WORDS,
            "x": lambda rng: syllables(rng, 2) if rng.random() < 0.03 else rng.choice(ASPECTS),
            **{slot: leaning(words[label]) for slot, words in _LEANING.items()},
            **{slot: leaning(words[1 - label]) for slot, words in _TURNED.items()},
        }
