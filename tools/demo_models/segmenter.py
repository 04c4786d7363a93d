"""`tiny-segmenter`: assigns pixels to shapes by colour."""

from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from transformers import (
    SegformerConfig,
    SegformerForSemanticSegmentation,
    SegformerImageProcessorPil,
)

from tools.demo_models import common, vision
from tools.demo_models.shapes import COLOURS, Pixels, Scene, draw

LABELS = dict(enumerate(("background", *COLOURS)))
SIZE = 64
SCENES = 9_000
STEPS = 1_200
BATCH = 16


def label_map(scene: Scene) -> Pixels:
    """Returns `[height, width]` of uint8: the index of each pixel's label."""
    labels = np.zeros(scene.image.size[::-1], np.uint8)
    for shape, mask in zip(scene.shapes, scene.masks, strict=True):
        labels[mask] = 1 + [*COLOURS].index(shape.colour)
    return labels


@cache
def held_out(count: int, size: int = 64) -> list[tuple[Image.Image, Pixels]]:
    """Returns pictures that were not trained on, each with its `label_map`."""
    rng = Random(common.SEED + 1)  # noqa: S311 - draws pictures, no secrets
    scenes = [_scene(rng, size) for _ in range(count)]
    return [(scene.image, label_map(scene)) for scene in scenes]


def _scene(rng: Random, size: int = 64) -> Scene:
    return draw(rng, count=rng.randint(1, 3), size=size)


def segmented(
    model: SegformerForSemanticSegmentation, processor: Any, images: Sequence[Image.Image]
) -> list[Pixels]:
    """Returns `[height, width]` of label indices for each image, as the pipeline returns them."""
    with torch.no_grad():
        output = model(vision.pixels(processor, images))
    sizes = [image.size[::-1] for image in images]
    maps = processor.post_process_semantic_segmentation(output, target_sizes=sizes)
    return [each.numpy() for each in maps]


def ious(found: Sequence[Pixels], truth: Sequence[Pixels]) -> list[float]:
    """Returns the intersection over union of each label's pixels, over all pictures."""
    ours, theirs = (np.concatenate([each.ravel() for each in maps]) for maps in (found, truth))
    return [
        float(((ours == at) & (theirs == at)).sum() / ((ours == at) | (theirs == at)).sum())
        for at in LABELS
    ]


def _batches(processor: Any, rng: Random) -> Iterator[common.Batch]:
    scenes = [_scene(rng) for _ in range(SCENES)]
    images = vision.stored(processor, [scene.image for scene in scenes])
    maps = torch.tensor(np.stack([label_map(scene) for scene in scenes]))
    for part in vision.shuffled(SCENES, BATCH):
        augmented, labels = _mirrored(vision.restored(images[part]), maps[part].long())
        yield {"pixel_values": vision.shaken(augmented), "labels": labels}


def _mirrored(pixels: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Mirrors half of the pictures with their labels."""
    chosen = torch.rand(len(pixels)) < 0.5
    pixels[chosen] = pixels[chosen].flip(-1)
    labels[chosen] = labels[chosen].flip(-1)
    return pixels, labels


def _model() -> SegformerForSemanticSegmentation:
    return SegformerForSemanticSegmentation(
        SegformerConfig(
            num_encoder_blocks=3,
            depths=[1, 1, 2],
            sr_ratios=[4, 2, 1],
            hidden_sizes=[24, 48, 72],
            patch_sizes=[7, 3, 3],
            strides=[4, 2, 2],
            num_attention_heads=[1, 2, 4],
            mlp_ratios=[3, 3, 2],
            decoder_hidden_size=48,
            classifier_dropout_prob=0.0,
            drop_path_rate=0.0,
            # The default suits widths in the hundreds.
            initializer_range=0.06,
            id2label=LABELS,
            label2id={label: at for at, label in LABELS.items()},
        )
    )


def build(folder: Path) -> None:
    """Trains the segmenter, measures it and writes its folder."""
    rng = common.seed_everything()
    processor = vision.processor(SIZE, SegformerImageProcessorPil)
    model = _model()
    batches = _batches(processor, rng)
    common.fit(model, batches, lambda batch: model(**batch).loss, steps=STEPS, peak_rate=3e-3)
    common.save(model, processor, folder)
    common.write_card(folder, model, _card(model, processor))


def _figures(
    model: SegformerForSemanticSegmentation, processor: Any, count: int, size: int = 64
) -> list[float]:
    images, truth = zip(*held_out(count, size), strict=True)
    figures = ious(segmented(model, processor, images), truth)
    return [vision.rounded_down(each) for each in [sum(figures) / len(figures), *figures]]


def _card(model: SegformerForSemanticSegmentation, processor: Any) -> common.Card:
    mean, *each = _figures(model, processor, 500)
    large, *_ = _figures(model, processor, 100, 200)
    return common.Card(
        title="tiny-segmenter: which pixels belong to shapes of which colour?",
        pipeline_tag="image-segmentation",
        tags=("segformer", "shapes", "image-segmentation", "tiny"),
        summary=(
            "A Segformer with three stages that tells the pixels of red, green, blue, yellow and "
            "purple shapes from each other and from the ground (semantic segmentation). The image "
            f"processor brings a picture to {SIZE} by {SIZE} pixels; the labels come back in the "
            "picture's own size."
        ),
        data=(
            f"{SCENES:,} pictures of 64 by 64 pixels with one to three shapes that do not touch. "
            f"Each is {vision.SHAPES}. Held out are other draws of the same kind."
        ),
        evaluation=[
            ("mean IoU over the six labels", mean, 500),
            *((f"IoU of {LABELS[at]}", figure, 500) for at, figure in enumerate(each)),
            ("mean IoU, pictures of 200 by 200 pixels", large, 100),
        ],
        example=(
            "from transformers import pipeline\n\n"
            'segment = pipeline("image-segmentation", "tiny-segmenter")\n'
            'segment("shapes.png")\n'
            '# [{"label": "background", "mask": ...}, {"label": "red", "mask": ...}]'
        ),
        limits=(
            "Two shapes of one colour share a mask: it does not count, and it does not tell a "
            "circle from a square. Edges are worked out on a "
            "grid of 16 by 16, so corners come back blunt. It knows painted shapes on greyish "
            "grounds, and nothing of photographs."
        ),
        **vision.CARD | {"bounds": f"pictures of {SIZE} by {SIZE} pixels"},
    )
