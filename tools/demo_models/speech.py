"""Spoken digits in English and German, from the synthesiser `espeak-ng`, with their times.

Needs the program `espeak-ng` (Debian's package of that name). Nothing else in Stoker needs it.
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
"""Maximum length of a clip in seconds."""
WORDS = {
    "en": ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"],
    "de": ["null", "eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun"],
}
ACCENTS = {"en": ("en-gb", "en-us", "en-gb-scotland"), "de": ("de",)}
SPEAKERS = entries("Alex, Andy, f1, f2, f4, f5, john, klatt, linda, m1, m2, m3, m5, m6, m8, steph")
UNHEARD = entries("m4, m7, f3, Annie, Michael, steph2")
"""Speakers that no training clip has."""
_QUIET = 0.01
"""Threshold as a share of the loudest sample. Quieter samples at both ends of a rendering are cut
off.
"""

Samples = npt.NDArray[np.float32]


class Segment(NamedTuple):
    """Digits spoken without a pause, with their times in seconds from the clip's start."""

    digits: tuple[int, ...]
    spans: tuple[tuple[float, float], ...]
    """Start and end of each digit. Digits that were rendered together are assumed to have equal
    lengths.
    """

    @property
    def start(self) -> float:
        return self.spans[0][0]

    @property
    def end(self) -> float:
        return self.spans[-1][1]


@dataclass(frozen=True)
class Clip:
    """Mono sound at `RATE` Hz from -1 to 1, float32 of shape (samples,), with its spoken digits."""

    samples: Samples
    language: str
    segments: Sequence[Segment]

    @property
    def digits(self) -> list[int]:
        """All spoken digits, in order."""
        return [digit for segment in self.segments for digit in segment.digits]

    def text(self, language: str = "") -> str:
        """Returns the digits' names, by default in the spoken language."""
        return " ".join(WORDS[language or self.language][digit] for digit in self.digits)


class _Piece(NamedTuple):
    """A rendering, without surrounding silence."""

    samples: Samples
    digits: tuple[int, ...]


class Voice:
    """A speaker with one accent. Renderings of single digits and of sequences are made once."""

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
        """Renders digits at a random speed, in words per minute, and a random pitch, 0 to 99."""
        words = " ".join(WORDS[self.language][digit] for digit in digits)
        speed, pitch = rng.randint(130, 200), rng.randint(35, 65)
        command = ["espeak-ng", "-v", self._name, "-s", str(speed), "-p", str(pitch), "--stdout"]
        made = subprocess.run([*command, words], check=True, capture_output=True).stdout  # noqa: S603
        samples = audio.decode(made, RATE, MediaLimits())
        loud = np.flatnonzero(np.abs(samples) > _QUIET * np.abs(samples).max())
        return _Piece(samples[loud[0] : loud[-1] + 1], digits)

    def says(self, rng: Random, digits: tuple[int, ...]) -> Clip:
        """Returns a clip of exactly these digits."""
        track, placed = _laid(rng, [[self._rendered(rng, digits)]])
        return Clip(_heard(rng, track), self.language, [_segment(placed[0], 0)])

    def group(self, rng: Random, count: int, *, apart: bool) -> list[_Piece]:
        """Returns pieces to be spoken without a pause. With `apart`, each piece is one digit."""
        fitting = [piece for piece in self._sequences if len(piece.digits) == count]
        if fitting and not apart and rng.random() < 0.6:
            return [rng.choice(fitting)]
        return [rng.choice(self._single[(rng.randrange(10),)]) for _ in range(count)]


def voices(rng: Random, speakers: Sequence[str], takes: int) -> list[Voice]:
    """Returns voices for every English accent and speaker. German voices have twice as many
    takes.
    """
    return [
        Voice(rng, language, accent, speaker, takes * (2 if language == "de" else 1))
        for speaker in speakers
        for language, accents in ACCENTS.items()
        for accent in accents
    ]


def clips(rng: Random, voices: Sequence[Voice], *, cut: float = 0.0) -> Iterator[Clip]:
    """Yields endless clips of one to six digits. German and English are equally frequent.

    The share `cut` of them are windows into longer speech and may begin or end within a word.
    """
    by_language = [[each for each in voices if each.language == name] for name in WORDS]
    while True:
        voice = rng.choice(rng.choice(by_language))
        clip = _window(rng, voice) if rng.random() < cut else _whole(rng, voice)
        if clip is not None:
            yield clip


def _whole(rng: Random, voice: Voice) -> Clip | None:
    """Returns a clip with all its speech, or None if it is too long."""
    remaining, groups = rng.randint(1, 6), list[list[_Piece]]()
    while remaining:
        count = min(remaining, rng.choice((1, 2, 3, 3, 4, 6)))
        groups.append(voice.group(rng, count, apart=False))
        remaining -= count
    track, placed = _laid(rng, groups)
    if len(track) > LONGEST * RATE:
        return None
    return Clip(_heard(rng, track), voice.language, [_segment(pieces, 0) for pieces in placed])


def _window(rng: Random, voice: Voice) -> Clip:
    """Returns a clip of maximum length from a random position in continuous speech. A word counts
    if at least half of it is inside.
    """
    groups = [voice.group(rng, rng.randint(1, 5), apart=True) for _ in range(8)]
    track, placed = _laid(rng, groups)
    size = int(LONGEST * RATE)
    begin = rng.randrange(max(1, len(track) - size))
    segments: list[Segment] = []
    for pieces in placed:
        inside = [piece for piece in pieces if begin < (piece[0] + piece[1]) / 2 < begin + size]
        if inside:
            segments.append(_segment(inside, begin))
    return Clip(_heard(rng, track[begin : begin + size]), voice.language, segments)


_Placed = tuple[int, int, tuple[int, ...]]
"""First sample of a piece, the sample after its last one, and its digits."""


def _segment(pieces: Sequence[_Placed], begin: int) -> Segment:
    """Returns the segment of pieces on a track, in a clip that begins at sample `begin`."""
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
    """Places all groups on one track, with longer pauses between groups than within them."""
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
    """Returns the track at a random loudness with random noise."""
    generator = np.random.default_rng(rng.getrandbits(64))
    noise = generator.normal(size=len(track)).astype(np.float32)
    if rng.random() < 0.5:  # closer to a rumble than to a hiss
        noise = np.convolve(noise, np.full(8, 0.35, np.float32), "same")
    loudness = rng.uniform(0.1, 0.9) / max(float(np.abs(track).max()), 1e-9)
    mixed = track * loudness + 10 ** rng.uniform(-4.5, -2.2) * noise
    return np.clip(mixed, -1, 1).astype(np.float32)
