"""Compares transcripts of long recordings with pauses: Stoker's, transformers' and the truth.

`python -m tools.pauses --minutes 1 10 30` makes recordings of spoken digits with pauses of silence,
noise and music. It transcribes them with the demo's `tiny-transcriber`, and prints word error rates
and the time errors of segments.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import stoker.demo
from stoker.base.media_limits import MediaLimits
from stoker.inference.openai.transcriptions import TranscriptionRequest
from stoker.media import audio
from stoker.media.media import Media
from stoker.runtime.interface import Call
from tools.demo_models.speech import RATE, WORDS, Samples
from tools.demo_models.transcriber import words_right

DEMO = Path(stoker.demo.__file__).parent
MODEL = DEMO / "models" / "tiny-transcriber"
PIPELINE = "automatic-speech-recognition"
PAUSES_S = (1, 2, 5, 12, 20, 60)
CLOSE_S = 0.5
"""Maximum error, in seconds, of a segment's time that counts as correct."""
_LOUD = 0.02
"""Threshold as a share of a clip's loudest sample. Quieter ends are not speech."""


@dataclass(frozen=True)
class Said:
    """An utterance with its start and end, in seconds from the recording's start."""

    text: str
    start: float
    end: float


@dataclass(frozen=True)
class Recording:
    samples: Samples
    said: Sequence[Said]

    @property
    def text(self) -> str:
        return " ".join(utterance.text for utterance in self.said)


@cache
def clips() -> list[tuple[Samples, str]]:
    """Returns the demo's English recordings of digits, each with its text."""
    recordings: list[tuple[Samples, str]] = []
    for path in sorted((DEMO / "media" / "spoken").glob("en-*.ogg")):
        digits = path.stem.partition("-")[2]
        text = " ".join(WORDS["en"][int(digit)] for digit in digits)
        recordings.append((audio.decode(path.read_bytes(), RATE, MediaLimits()), text))
    return recordings


def silence(size: int, rng: np.random.Generator) -> npt.NDArray[Any]:
    return np.zeros(size)


def music(size: int, rng: np.random.Generator) -> npt.NDArray[Any]:
    """Returns chords that change every half a second."""
    step = RATE // 2
    chords = [
        np.sin(2 * np.pi * np.outer(rng.uniform(110, 880, 3), np.arange(step)) / RATE).sum(0)
        for _ in range(size // step + 1)
    ]
    return 0.05 * np.concatenate(chords)[:size]


def hum(size: int, rng: np.random.Generator) -> npt.NDArray[Any]:
    """Returns mains hum with its first overtones."""
    times = np.arange(size) / RATE
    parts = np.arange(1, 4)[:, None]
    return (0.02 / parts * np.sin(2 * np.pi * 50 * parts * times)).sum(0)


Filling = Callable[[int, np.random.Generator], npt.NDArray[Any]]
FILLINGS: dict[str, tuple[Filling, float]] = {
    "silence": (silence, 0.0),
    "quiet noise": (silence, 1e-4),
    "noise": (silence, 3e-3),
    "hum": (hum, 1e-4),
    "music": (music, 1e-4),
}
"""Maps a name to the generator of the pauses' content and the loudness of noise over the whole
recording.
"""


def recording(seconds: float, pause_s: float, kind: str, seed: int = 0) -> Recording:
    """Returns digits with pauses of 0.8 to 1.2 times `pause_s`."""
    rng = np.random.default_rng(seed)
    filling, loudness = FILLINGS[kind]
    parts: list[npt.NDArray[Any]] = [filling(RATE // 2, rng)]
    utterances: list[Said] = []
    at = len(parts[0])
    while at < seconds * RATE:
        samples, text = clips()[rng.integers(len(clips()))]
        loud = np.flatnonzero(np.abs(samples) > _LOUD * np.abs(samples).max())
        utterances.append(Said(text, (at + loud[0]) / RATE, (at + loud[-1]) / RATE))
        parts += [samples, filling(round(pause_s * RATE * rng.uniform(0.8, 1.2)), rng)]
        at += len(samples) + len(parts[-1])
    track = np.concatenate(parts)
    track = track + loudness * rng.standard_normal(len(track))
    return Recording(track.clip(-1, 1).astype(np.float32), utterances)


def call(samples: Samples, **fields: Any) -> Call:
    """Returns the call that transcribes samples with times."""
    media = Media("audio", content=samples.tobytes(), sampling_rate=RATE)
    request_fields = {"file": media, "language": "en", "response_format": "verbose_json", **fields}
    body = TranscriptionRequest.model_validate(request_fields)
    return Call(
        task=PIPELINE,
        items=[body.file],
        parameters=body.parameters(),
        single=True,
        finishing=dict(body.finishing()),
        stream=body.is_streamed,
    )


def word_errors(text: str, wanted: Recording) -> float:
    """Returns the word error rate."""
    return 1 - words_right([text], [wanted.text])


def offsets(segments: Sequence[Any], wanted: Recording) -> tuple[list[float], list[float]]:
    """Returns the distance in seconds of each utterance's start and end from the nearest
    segment's.
    """
    starts = [
        min(abs(segment["start"] - utterance.start) for segment in segments)
        for utterance in wanted.said
    ]
    ends = [
        min(abs(segment["end"] - utterance.end) for segment in segments)
        for utterance in wanted.said
    ]
    return starts, ends


def sequential(pipe: Any, samples: Samples) -> str:
    """Returns the text of transformers' sequential algorithm."""
    options = {"language": "en", "num_beams": 1}
    return pipe(samples.copy(), return_timestamps=True, generate_kwargs=options)["text"]


def _measured(minutes: Sequence[float], *, alone: bool) -> Iterator[str]:
    import transformers

    from tests.support.local import Local

    pipe = transformers.pipeline(PIPELINE, model=str(MODEL), device="cpu")
    local = Local(PIPELINE, MODEL)
    local.stages.limits = MediaLimits(audio_s=7200)
    for length in minutes:
        for kind in FILLINGS:
            for pause_s in PAUSES_S:
                made = recording(60 * length, pause_s, kind)
                began = time.perf_counter()
                answer = json.loads(local.answers([call(made.samples)])[0])
                seconds = time.perf_counter() - began
                theirs = "" if alone else sequential(pipe, made.samples)
                errors = "" if alone else f"{word_errors(theirs, made):.3f}"
                starts, ends = offsets(answer["segments"], made)
                near = np.mean([error_s <= CLOSE_S for error_s in (*starts, *ends)])
                yield (
                    f"| {length:g} | {kind} | {pause_s} | {word_errors(answer['text'], made):.3f} "
                    f"| {errors} | {near:.1%} | {np.mean(starts):.2f} | {np.mean(ends):.2f} "
                    f"| {seconds:.1f} |"
                )
    local.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, nargs="+", default=[1])
    parser.add_argument("--alone", action="store_true", help="leave transformers out: it is slow")
    arguments = parser.parse_args()
    print("| minutes | pauses | s | errors | transformers' | within 0.5 s | start | end | took |")
    for line in _measured(arguments.minutes, alone=arguments.alone):
        print(line, flush=True)


if __name__ == "__main__":
    main()
