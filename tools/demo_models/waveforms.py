"""Short synthetic sounds, each with its name."""

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt

RATE = 16_000
SHORTEST, LONGEST = 0.6, 1.4
"""Minimum and maximum length in seconds."""

Samples = npt.NDArray[np.float32]
Example = tuple[Samples, str]
_Wave = npt.NDArray[np.float64]

_LOWEST = 110.0
"""Frequency of the lowest semitone in Hz."""
_SEMITONES = 49


def training(rng: Random, count: int) -> list[Example]:
    """Returns training sounds. None is based on every fourth semitone."""
    semitones = [at for at in range(_SEMITONES) if at % 4]
    return [_draw(rng, semitones) for _ in range(count)]


def held_out(count: int, seed: int = 1) -> list[Example]:
    """Returns sounds based on the semitones that were kept out of training.

    Each is float32 `[samples]` in -1..1, 0.6 to 1.4 seconds at 16 kHz.
    """
    rng = Random(seed)  # noqa: S311 - draws sounds, no secrets
    return [_draw(rng, range(0, _SEMITONES, 4)) for _ in range(count)]


def _draw(rng: Random, semitones: Any) -> Example:
    label = rng.choice(list(_SOUNDS))
    time = np.arange(round(RATE * rng.uniform(SHORTEST, LONGEST))) / RATE
    # Varies by a quarter of a semitone, so that the held-out pitches stay separate.
    pitch = _LOWEST * 2 ** ((rng.choice(semitones) + rng.uniform(-0.25, 0.25)) / 12)
    wave = _SOUNDS[label](rng, time, pitch)
    wave = wave / max(float(np.abs(wave).max()), 1e-9) * rng.uniform(0.1, 0.9)
    hiss = 10 ** rng.uniform(-4.0, -2.3) * _noise(rng, len(time))
    return np.clip(_faded(wave, rng) + hiss, -1, 1).astype(np.float32), label


def _noise(rng: Random, count: int) -> _Wave:
    return np.random.default_rng(rng.getrandbits(64)).normal(size=count)


def _faded(wave: _Wave, rng: Random) -> _Wave:
    """Fades the wave in and out to avoid clicks."""
    ramp = np.linspace(0, 1, round(RATE * rng.uniform(0.005, 0.03)))
    faded = wave.copy()
    faded[: len(ramp)] *= ramp
    faded[-len(ramp) :] *= ramp[::-1]
    return faded


def _sung(rng: Random, frequency: Any, time: _Wave) -> _Wave:
    """Returns a sine that follows the frequency in Hz, from a random phase."""
    turns = np.cumsum(np.broadcast_to(frequency, time.shape)) / RATE
    return np.sin(2 * np.pi * (turns + rng.random()))


def _tone(rng: Random, time: _Wave, pitch: float) -> _Wave:
    return _sung(rng, pitch, time)


def _square(rng: Random, time: _Wave, pitch: float) -> _Wave:
    """Returns a square wave of odd harmonics up to 7.5 kHz, because sharp edges would cause
    aliasing.
    """
    phase = rng.random()
    wave = np.zeros_like(time)
    for harmonic in range(1, int(7500 / pitch) + 1, 2):
        wave += np.sin(2 * np.pi * harmonic * (pitch * time + phase)) / harmonic
    return wave


def _chirp(rng: Random, time: _Wave, pitch: float, way: int) -> _Wave:
    octaves = rng.uniform(0.8, 2.0) * time / time[-1]
    return _sung(rng, pitch * 2 ** (octaves if way > 0 else octaves[::-1]), time)


def _rising(rng: Random, time: _Wave, pitch: float) -> _Wave:
    return _chirp(rng, time, pitch, 1)


def _falling(rng: Random, time: _Wave, pitch: float) -> _Wave:
    return _chirp(rng, time, pitch, -1)


def _siren(rng: Random, time: _Wave, pitch: float) -> _Wave:
    swing = rng.uniform(0.3, 0.8) * np.sin(2 * np.pi * (rng.uniform(2.5, 6) * time + rng.random()))
    return _sung(rng, pitch * 2 ** (0.8 + swing), time)


def _hiss(rng: Random, time: _Wave, pitch: float) -> _Wave:
    return _noise(rng, len(time))


def _clicks(rng: Random, time: _Wave, pitch: float) -> _Wave:
    """Returns bursts that decay within milliseconds, at a steady rate."""
    gap = 1 / rng.uniform(4, 16)
    since = (time + rng.uniform(0, gap)) % gap
    return np.exp(-since / rng.uniform(0.001, 0.004)) * _noise(rng, len(time))


def _nothing(rng: Random, time: _Wave, pitch: float) -> _Wave:
    return np.zeros_like(time)


_SOUNDS: dict[str, Callable[[Random, _Wave, float], _Wave]] = {
    "sine tone": _tone,
    "square wave": _square,
    "rising chirp": _rising,
    "falling chirp": _falling,
    "siren": _siren,
    "white noise": _hiss,
    "clicks": _clicks,
    "silence": _nothing,
}
LABELS = tuple(_SOUNDS)
