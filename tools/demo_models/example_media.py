"""`python -m tools.demo_models.example_media` writes the media of the example calls."""

import io
import wave
from pathlib import Path
from random import Random
from typing import Any

import av
import numpy as np

from stoker.demo.setup import MODELS
from tools.demo_models import digits, motion, scenes, speech, transcriber, waveforms
from tools.demo_models.shapes import Background, Shape, render

FOLDER = MODELS.parent / "media"
SPOKEN = FOLDER / "spoken"
"""Speech of speakers that the training of `tiny-transcriber` never used. Files are named by their
digits.
"""
CLIPS = 28
CAPTION = "a red circle left of a blue square"
PALE = Background("flat", (225, 225, 222), (225, 225, 222))
CIRCLE = Shape("circle", "red", 32, 32, 18)


def main() -> None:
    """Writes every file from the generators of the held-out examples. The result is always the
    same.
    """
    FOLDER.mkdir(exist_ok=True)
    rng = Random(0)  # noqa: S311 - draws pictures, no secrets
    render((CIRCLE,), PALE, rng, noise=4.0).save(FOLDER / "circle.png")
    drawn = scenes.unseen(rng, 2000, (0, 1, 0))
    scene = next(candidate for candidate in drawn if scenes.described(candidate.shapes) == CAPTION)
    scene.image.save(FOLDER / "scene.png")
    seven = next(image for image, label in digits.held_out() if label == "7")
    seven.resize((64, 64)).save(FOLDER / "seven.png")
    clip = next(clip for clip, label in motion.held_out(50) if label == "moving left")
    (FOLDER / "moving.mp4").write_bytes(motion.encode(clip))
    samples = next(samples for samples, label in waveforms.held_out(50) if label == "siren")
    _write_wave(FOLDER / "siren.wav", samples)
    _speak(rng)


def _speak(rng: Random) -> None:
    """Writes the speech files. Needs `espeak-ng`, as `tiny-transcriber` does."""
    voice = speech.Voice(rng, "en", "en-us", speech.UNHEARD[1], 1)
    _write_wave(FOLDER / "seven-three-one.wav", voice.says(rng, (7, 3, 1)).samples)
    SPOKEN.mkdir(exist_ok=True)
    for clip in transcriber.held_out(CLIPS, seed=2):
        name = f"{clip.language}-{''.join(map(str, clip.digits))}.ogg"
        (SPOKEN / name).write_bytes(_opus(clip.samples))


def _write_wave(path: Path, samples: waveforms.Samples) -> None:
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, waveforms.RATE, len(samples), "NONE", ""))
        file.writeframes((samples * 32767).astype(np.dtype("<i2")).tobytes())


def _opus(samples: waveforms.Samples) -> bytes:
    """Returns an Ogg file at 24 kbit/s."""
    buffer = io.BytesIO()
    opened: Any = av.open(buffer, "w", format="ogg")
    with opened as file:
        stream = file.add_stream("libopus", rate=speech.RATE, bit_rate=24_000, layout="mono")
        frame = av.AudioFrame.from_ndarray(samples[None], format="flt", layout="mono")
        frame.sample_rate = speech.RATE
        file.mux(stream.encode(frame))
        file.mux(stream.encode(None))
    return buffer.getvalue()


if __name__ == "__main__":
    main()
