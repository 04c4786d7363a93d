"""Spoken digits in English and German, from the synthesiser `espeak-ng`, with their times.

Needs the program `espeak-ng` (Debian's package of that name); nothing else of Stoker does.
"""

import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from stoker.base.media_limits import MediaLimits
from stoker.media import audio
from tools.demo_models.grammar import entries

RATE = 16_000
LONGEST = 4.0
"""Seconds of a clip at most."""
WORDS = {
    "en": ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"],
    "de": ["null", "eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun"],
}
ACCENTS = {"en": ("en-gb", "en-us", "en-gb-scotland"), "de": ("de",)}
SPEAKERS = entries("Alex, Andy, f1, f2, f4, f5, john, klatt, linda, m1, m2, m3, m5, m6, m8, steph")
UNHEARD = entries("m4, m7, f3, Annie, Michael, steph2")
"""Speakers that no clip of the training has."""
_QUIET = 0.01
"""Of the loudest sample: what comes before and after it in a rendering is cut off."""

Samples = npt.NDArray[np.float32]


class Segment(NamedTuple):
    """Digits spoken in one go, and when, in seconds from the clip's start."""

    digits: tuple[int, ...]
    spans: tuple[tuple[float, float], ...]
    """Of each digit. Digits that were rendered together are taken to be equally long."""

    @property
    def start(self) -> float:
        return self.spans[0][0]

    @property
    def end(self) -> float:
        return self.spans[-1][1]


@dataclass(frozen=True)
class Clip:
    """Mono sound at `RATE` Hz from -1 to 1, float32 of shape (samples,), and what is said in it."""

    samples: Samples
    language: str
    segments: Sequence[Segment]

    @property
    def digits(self) -> list[int]:
        """All that are spoken, in order."""
        return [digit for segment in self.segments for digit in segment.digits]

    def text(self, language: str = "") -> str:
        """The digits' names, in the language spoken unless another is asked for."""
        return " ".join(WORDS[language or self.language][digit] for digit in self.digits)


class _Piece(NamedTuple):
    """One rendering, without silence around it."""

    samples: Samples
    digits: tuple[int, ...]


class Voice:
    """One speaker of one accent: renderings of single digits and of sequences, made once."""

    def __init__(self, rng: Random, language: str, accent: str, speaker: str, takes: int) -> None:
        self.language = language
        self._name = f"{accent}+{speaker}"
        self._single = {
            (digit,): [self._rendered(rng, (digit,)) for _ in range(takes)] for digit in range(10)
        }
        self._sequences = [
            self._rendered(rng, tuple(rng.choices(range(10), k=rng.randint(2, 4))))
            for _ in range(4 * takes)
        ]

    def _rendered(self, rng: Random, digits: tuple[int, ...]) -> _Piece:
        """Spoken at a drawn speed, in words a minute, and pitch, 0 to 99."""
        words = " ".join(WORDS[self.language][digit] for digit in digits)
        speed, pitch = rng.randint(130, 200), rng.randint(35, 65)
        command = ["espeak-ng", "-v", self._name, "-s", str(speed), "-p", str(pitch), "--stdout"]
        made = subprocess.run([*command, words], check=True, capture_output=True).stdout  # noqa: S603
        samples = audio.decode(made, RATE, MediaLimits())
        loud = np.flatnonzero(np.abs(samples) > _QUIET * np.abs(samples).max())
        return _Piece(samples[loud[0] : loud[-1] + 1], digits)

    def says(self, rng: Random, digits: tuple[int, ...]) -> Clip:
        """A clip of just these digits."""
        track, placed = _laid(rng, [[self._rendered(rng, digits)]])
        return Clip(_heard(rng, track), self.language, [_segment(placed[0], 0)])

    def group(self, rng: Random, count: int, *, apart: bool) -> list[_Piece]:
        """Pieces to be spoken in one go: of one digit each where `apart`."""
        fitting = [piece for piece in self._sequences if len(piece.digits) == count]
        if fitting and not apart and rng.random() < 0.6:
            return [rng.choice(fitting)]
        return [rng.choice(self._single[(rng.randrange(10),)]) for _ in range(count)]


def voices(rng: Random, speakers: Sequence[str], takes: int) -> list[Voice]:
    """Every accent of English by every speaker, and as much of German."""
    return [
        Voice(rng, language, accent, speaker, takes * (2 if language == "de" else 1))
        for speaker in speakers
        for language, accents in ACCENTS.items()
        for accent in accents
    ]


def clips(rng: Random, voices: Sequence[Voice], *, cut: float = 0.0) -> Iterator[Clip]:
    """Endless clips of one to six digits, German as often as English.

    The share `cut` of them are windows into longer speech, and may begin or end within a word.
    """
    by_language = [[each for each in voices if each.language == name] for name in WORDS]
    while True:
        voice = rng.choice(rng.choice(by_language))
        found = _window(rng, voice) if rng.random() < cut else _whole(rng, voice)
        if found is not None:
            yield found


def _whole(rng: Random, voice: Voice) -> Clip | None:
    """A clip that holds all that was said, or None where that became too long."""
    left, groups = rng.randint(1, 6), list[list[_Piece]]()
    while left:
        count = min(left, rng.choice((1, 2, 3, 3, 4, 6)))
        groups.append(voice.group(rng, count, apart=False))
        left -= count
    track, placed = _laid(rng, groups)
    if len(track) > LONGEST * RATE:
        return None
    return Clip(_heard(rng, track), voice.language, [_segment(pieces, 0) for pieces in placed])


def _window(rng: Random, voice: Voice) -> Clip:
    """The longest clip from anywhere in speech that goes on; half a word counts as heard."""
    groups = [voice.group(rng, rng.randint(1, 5), apart=True) for _ in range(8)]
    track, placed = _laid(rng, groups)
    size = int(LONGEST * RATE)
    begin = rng.randrange(max(1, len(track) - size))
    segments: list[Segment] = []
    for pieces in placed:
        inside = [one for one in pieces if begin < (one[0] + one[1]) / 2 < begin + size]
        if inside:
            segments.append(_segment(inside, begin))
    return Clip(_heard(rng, track[begin : begin + size]), voice.language, segments)


_Placed = tuple[int, int, tuple[int, ...]]
"""The first sample of a piece, the one behind its last, and its digits."""


def _segment(pieces: Sequence[_Placed], begin: int) -> Segment:
    """Of pieces on a track, in a clip that begins at a sample of it."""
    digits: list[int] = []
    spans: list[tuple[float, float]] = []
    for start, end, spoken in pieces:
        share = (end - start) / len(spoken)
        for at, digit in enumerate(spoken):
            first = (start - begin + at * share) / RATE
            digits.append(digit)
            spans.append((max(first, 0.0), min(first + share / RATE, LONGEST)))
    return Segment(tuple(digits), tuple(spans))


def _laid(rng: Random, groups: Sequence[Sequence[_Piece]]) -> tuple[Samples, list[list[_Placed]]]:
    """All groups on one track, with longer pauses between groups than within them."""
    parts, at, placed = list[Samples](), 0, list[list[_Placed]]()

    def pause(shortest: float, longest: float) -> int:
        parts.append(np.zeros(round(rng.uniform(shortest, longest) * RATE), np.float32))
        return len(parts[-1])

    at += pause(0.02, 0.5)
    for group in groups:
        placed.append([])
        for piece in group:
            parts.append(piece.samples)
            placed[-1].append((at, at + len(piece.samples), piece.digits))
            at += len(piece.samples)
            at += pause(0.02, 0.2) if piece is not group[-1] else pause(0.4, 0.7)
    parts[-1] = parts[-1][: round(rng.uniform(0.02, 0.5) * RATE)]
    return np.concatenate(parts), placed


def _heard(rng: Random, track: Samples) -> Samples:
    """At some loudness, over some noise."""
    generator = np.random.default_rng(rng.getrandbits(64))
    noise = generator.normal(size=len(track)).astype(np.float32)
    if rng.random() < 0.5:  # rather a rumble than a hiss
        noise = np.convolve(noise, np.full(8, 0.35, np.float32), "same")
    loudness = rng.uniform(0.1, 0.9) / max(float(np.abs(track).max()), 1e-9)
    mixed = track * loudness + 10 ** rng.uniform(-4.5, -2.2) * noise
    return np.clip(mixed, -1, 1).astype(np.float32)
