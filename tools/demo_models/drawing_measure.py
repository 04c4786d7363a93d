"""Measures with `tiny-clip` how well the pictures of `tiny-draw` fit their prompts."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import diffusers
import torch
from PIL import Image
from transformers import CLIPImageProcessorPil, CLIPModel, CLIPTokenizer

from stoker.demo.setup import MODELS
from tools.demo_models import clip

_DIFFUSERS: Any = diffusers  # most of its types are unknown

JUDGE = MODELS / "tiny-clip"
TOGETHER = 50
"""Number of pictures per batch."""


def judge() -> clip.Clip:
    """Returns the shipped `tiny-clip`."""
    return clip.Clip(
        CLIPModel.from_pretrained(JUDGE),
        CLIPTokenizer.from_pretrained(JUDGE),
        CLIPImageProcessorPil.from_pretrained(JUDGE),
    )


def loaded(folder: Path) -> Any:
    """Returns the `StableDiffusionPipeline` of a folder, in float32."""
    pipeline = _DIFFUSERS.StableDiffusionPipeline.from_pretrained(folder, local_files_only=True)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def drawn(pipeline: Any, prompts: Sequence[str], **options: Any) -> list[Image.Image]:
    """Returns a picture for each prompt, from the seeds 0, 1, 2 and so on."""
    images: list[Image.Image] = []
    for start in range(0, len(prompts), TOGETHER):
        part = list(prompts[start : start + TOGETHER])
        seeds = [torch.Generator().manual_seed(start + at) for at in range(len(part))]
        images += pipeline(part, generator=seeds, **options).images
    return images


def names_of(critic: clip.Clip, images: Sequence[Image.Image]) -> list[str]:
    """Returns the critic's best name of each picture, such as `red circle`."""
    labels = [f"a {name}" for name in clip.NAMES]
    return [clip.NAMES[int(row.argmax())] for row in clip.scores(critic, images, labels)]


def accuracy(
    pipeline: Any,
    critic: clip.Clip,
    names: Sequence[str],
    phrase: str = "a {}",
    **options: Any,
) -> float:
    """Returns the share of pictures that the critic recognises as requested."""
    recognised = names_of(
        critic, drawn(pipeline, [phrase.format(each) for each in names], **options)
    )
    return sum(a == b for a, b in zip(recognised, names, strict=True)) / len(names)


def figures(folder: Path) -> Iterator[tuple[str, float, int]]:
    """Yields each measurement, its share and its number of pictures."""
    pipeline, critic = loaded(folder), judge()
    fast = {"num_inference_steps": 20}
    unseen = clip.UNSEEN.format("a {}")
    cases: list[tuple[str, int, str, dict[str, Any]]] = [
        ('"a red circle", 50 steps, guidance 7.5', 10, "a {}", {}),
        ('"a red circle", 20 steps, guidance 7.5', 20, "a {}", fast),
        ('"a red circle", 20 steps, guidance 3', 5, "a {}", fast | {"guidance_scale": 3.0}),
        ('"red circle", 20 steps', 5, "{}", fast),
        (f'"{unseen.format("red circle")}", 20 steps', 5, unseen, fast),
    ]
    for label, seeds, phrase, options in cases:
        names = clip.NAMES * seeds
        right = accuracy(pipeline, critic, names, phrase, **options)
        yield f"{label}: seen as what was asked for", right, len(names)
    free = names_of(critic, drawn(pipeline, [""] * 100, **fast))
    yield "no words: share of the 20 names that were seen", len(set(free)) / 20, len(free)
    for label, unwanted in (("", ""), (', negative prompt "a circle"', "a circle")):
        options = fast | {"negative_prompt": [unwanted] * TOGETHER}
        recognised = names_of(critic, drawn(pipeline, ["something red"] * TOGETHER, **options))
        circles = sum(name.endswith(" circle") for name in recognised) / len(recognised)
        yield f'"something red"{label}: seen as a circle', circles, len(recognised)
