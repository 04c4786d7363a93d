"""`python -m stoker.demo.build.example_media` writes the media of the example calls."""

import wave
from pathlib import Path
from random import Random

import numpy as np

from stoker.demo.build import digits, motion, scenes, waveforms
from stoker.demo.build.shapes import Background, Shape, render

FOLDER = Path(__file__).parents[1] / "media"
CAPTION = "a red circle left of a blue square"
PALE = Background("flat", (225, 225, 222), (225, 225, 222))
CIRCLE = Shape("circle", "red", 32, 32, 18)


def main() -> None:
    """Every file from the generators of the held-out examples, the same each time."""
    FOLDER.mkdir(exist_ok=True)
    rng = Random(0)  # noqa: S311 - draws pictures, no secrets
    render((CIRCLE,), PALE, rng, noise=4.0).save(FOLDER / "circle.png")
    drawn = scenes.unseen(rng, 2000, (0, 1, 0))
    scene = next(one for one in drawn if scenes.described(one.shapes) == CAPTION)
    scene.image.save(FOLDER / "scene.png")
    seven = next(image for image, label in digits.held_out() if label == "7")
    seven.resize((64, 64)).save(FOLDER / "seven.png")
    clip = next(clip for clip, label in motion.held_out(50) if label == "moving left")
    (FOLDER / "moving.mp4").write_bytes(motion.encode(clip))
    samples = next(samples for samples, label in waveforms.held_out(50) if label == "siren")
    with wave.open(str(FOLDER / "siren.wav"), "wb") as file:
        file.setparams((1, 2, waveforms.RATE, len(samples), "NONE", ""))
        file.writeframes((samples * 32767).astype(np.dtype("<i2")).tobytes())


if __name__ == "__main__":
    main()
