"""`tiny-detector`: finds the positions and colours of shapes."""

import math
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from transformers import YolosConfig, YolosForObjectDetection, YolosImageProcessorPil

from tools.demo_models import common, vision
from tools.demo_models.shapes import COLOURS, Box, Scene, draw

LABELS = dict(enumerate(COLOURS))
SIZE = 48
PATCH = 8
QUERIES = 4
SCENES = 12_000
STEPS = 1_400
BATCH = 48
EMPTY_WEIGHT = 0.3
"""Training weight of tokens without a shape, which are the majority."""

Objects = list[tuple[str, Box]]


class Found(NamedTuple):
    """A detection in the picture's original pixels."""

    label: str
    score: float
    box: tuple[float, float, float, float]


@cache
def held_out(count: int, size: int = 64) -> list[tuple[Image.Image, Objects]]:
    """Returns pictures that were not trained on, each with the colours and boxes of its shapes."""
    rng = Random(common.SEED + 1)  # noqa: S311 - draws pictures, no secrets
    scenes = [_scene(rng, size) for _ in range(count)]
    return [(scene.image, _objects(scene)) for scene in scenes]


def _objects(scene: Scene) -> Objects:
    return [(shape.colour, box) for shape, box in zip(scene.shapes, scene.boxes, strict=True)]


def _scene(rng: Random, size: int = 64) -> Scene:
    return draw(rng, count=rng.randint(1, 2), size=size)


def detections(
    model: YolosForObjectDetection,
    processor: Any,
    images: Sequence[Image.Image],
    threshold: float = 0.5,
) -> list[list[Found]]:
    """Returns the detections above the threshold for each image, as the pipeline returns them."""
    with torch.no_grad():
        output = model(vision.pixels(processor, images))
    sizes = [image.size[::-1] for image in images]
    results = processor.post_process_object_detection(output, threshold, sizes)
    return [
        [
            Found(LABELS[label], score, tuple(box))
            for label, score, box in zip(
                each["labels"].tolist(),
                each["scores"].tolist(),
                each["boxes"].tolist(),
                strict=True,
            )
        ]
        for each in results
    ]


def iou(one: Sequence[float], other: Sequence[float]) -> float:
    """Returns the intersection over union of two boxes of left, top, right, bottom."""
    wide = min(one[2], other[2]) - max(one[0], other[0])
    high = min(one[3], other[3]) - max(one[1], other[1])
    shared = max(wide, 0) * max(high, 0)
    areas = sum((box[2] - box[0]) * (box[3] - box[1]) for box in (one, other))
    return shared / (areas - shared)


def matches(
    found: Sequence[Sequence[Found]], truth: Sequence[Objects], least: float = 0.5
) -> list[tuple[Found, bool]]:
    """Returns all detections, best score first, each with True if it is a hit.

    A hit has the label of an object that no better detection hit, and an IoU of at least `least`.
    """
    hits: list[tuple[Found, bool]] = []
    for each, objects in zip(found, truth, strict=True):
        remaining = list(objects)
        for detection in sorted(each, key=lambda detection: -detection.score):
            near = [
                at
                for at in remaining
                if at[0] == detection.label and iou(at[1], detection.box) >= least
            ]
            if near:
                remaining.remove(max(near, key=lambda at: iou(at[1], detection.box)))
            hits.append((detection, bool(near)))
    return sorted(hits, key=lambda hit: -hit[0].score)


def average_precision(hits: Sequence[tuple[Found, bool]], label: str, objects: int) -> float:
    """Returns the area under the label's precision-recall curve, as in COCO but at every recall."""
    right = np.array([hit for detection, hit in hits if detection.label == label], dtype=float)
    precision = right.cumsum() / np.arange(1, len(right) + 1)
    best_after = np.maximum.accumulate(precision[::-1])[::-1]
    return float((best_after * right).sum() / objects)


def _batches(processor: Any, rng: Random) -> Iterator[dict[str, Any]]:
    scenes = [_scene(rng) for _ in range(SCENES)]
    images = vision.stored(processor, [scene.image for scene in scenes])
    objects = [_targets(scene) for scene in scenes]
    for part in vision.shuffled(SCENES, BATCH):
        pixels = vision.restored(images[part])
        pixels, labels = _mirrored(pixels, [objects[int(at)] for at in part], rng)
        yield {"pixel_values": vision.shaken(pixels), "labels": labels}


def _targets(scene: Scene) -> common.Batch:
    """Returns `class_labels` `[shapes]` and `boxes` `[shapes, 4]`: centre, width and height from 0
    to 1.
    """
    corners = torch.tensor(scene.boxes) / scene.image.width
    boxes = torch.cat([(corners[:, 2:] + corners[:, :2]) / 2, corners[:, 2:] - corners[:, :2]], 1)
    labels = torch.tensor([[*COLOURS].index(shape.colour) for shape in scene.shapes])
    return {"class_labels": labels, "boxes": boxes}


def _mirrored(
    pixels: Tensor, objects: list[common.Batch], rng: Random
) -> tuple[Tensor, list[common.Batch]]:
    """Returns the batch in one of the eight rotations and reflections of a square."""
    boxes = [each["boxes"] for each in objects]
    for axis in (0, 1):
        if rng.random() < 0.5:
            pixels = pixels.flip(3 - axis)
            keep = torch.eye(4)[axis]
            boxes = [keep + each * (1 - 2 * keep) for each in boxes]
    if rng.random() < 0.5:
        pixels = pixels.transpose(2, 3)
        boxes = [each[:, [1, 0, 3, 2]] for each in boxes]
    return pixels, [each | {"boxes": box} for each, box in zip(objects, boxes, strict=True)]


def _model() -> YolosForObjectDetection:
    model = YolosForObjectDetection(
        YolosConfig(
            image_size=[SIZE, SIZE],
            patch_size=PATCH,
            hidden_size=64,
            num_hidden_layers=4,
            num_attention_heads=4,
            intermediate_size=128,
            initializer_range=0.06,
            num_detection_tokens=QUERIES,
            use_mid_position_embeddings=False,
            eos_coefficient=EMPTY_WEIGHT,
            id2label=LABELS,
            label2id={label: at for at, label in LABELS.items()},
        )
    )
    table = model.vit.embeddings.position_embeddings[0]
    grid = SIZE // PATCH
    vision.set_positions(table, grid)
    with torch.no_grad():
        # Each detection token starts with the position of a patch of its own quarter.
        quarters = [grid * row + column + 1 for row in (1, grid - 2) for column in (1, grid - 2)]
        table[-QUERIES:] = table[quarters]
    return model


def _weigh_back(model: YolosForObjectDetection) -> None:
    """Restores the odds of "no shape" that its weight reduced. Otherwise shapes would be found
    twice.
    """
    layer: Any = model.class_labels_classifier.layers[-1]
    with torch.no_grad():
        layer.bias[-1] -= math.log(EMPTY_WEIGHT)


def build(folder: Path) -> None:
    """Trains the detector, measures it and writes its folder."""
    rng = common.seed_everything()
    processor = vision.processor(SIZE, YolosImageProcessorPil, do_pad=False)
    model = _model()
    batches: Any = _batches(processor, rng)
    common.fit(model, batches, lambda batch: model(**batch).loss, steps=STEPS, peak_rate=1.5e-3)
    _weigh_back(model)
    common.save(model, processor, folder)
    common.write_card(folder, model, _card(model, processor))


def _figures(
    model: YolosForObjectDetection, processor: Any, count: int, size: int = 64
) -> dict[str, float]:
    images, truth = zip(*held_out(count, size), strict=True)
    every = matches(detections(model, processor, images, threshold=0.0), truth)
    sure = [hit for detection, hit in every if detection.score > 0.5]
    labels = [label for objects in truth for label, _ in objects]
    each = [average_precision(every, label, labels.count(label)) for label in COLOURS]
    figures = {
        "mean average precision": sum(each) / len(each),
        "recall": sum(sure) / len(labels),
        "precision": sum(sure) / max(len(sure), 1),
    }
    return {name: vision.rounded_down(figure) for name, figure in figures.items()}


def _card(model: YolosForObjectDetection, processor: Any) -> common.Card:
    figures = _figures(model, processor, 1000)
    large = _figures(model, processor, 200, 200)
    return common.Card(
        title="tiny-detector: where are the shapes?",
        pipeline_tag="object-detection",
        tags=("yolos", "shapes", "object-detection", "tiny"),
        summary=(
            f"A YOLOS with four layers of 64 dimensions and {QUERIES} detection tokens that finds "
            "shapes, draws a box around each and says whether it is red, green, blue, yellow or "
            "purple. The image "
            f"processor brings a picture to {SIZE} by {SIZE} pixels; the boxes come back in the "
            "picture's own pixels."
        ),
        data=(
            f"{SCENES:,} pictures of 64 by 64 pixels with one or two shapes that do not touch, "
            f"turned and mirrored in training. Each is {vision.SHAPES}. Held out are other draws "
            "of the same kind."
        ),
        evaluation=[
            *((f"{name}, IoU at least 0.5", figure, 1000) for name, figure in figures.items()),
            *((f"{name}, pictures of 200 by 200 pixels", at, 200) for name, at in large.items()),
        ],
        example=(
            "from transformers import pipeline\n\n"
            'detect = pipeline("object-detection", "tiny-detector")\n'
            'detect("shapes.png")\n'
            '# [{"label": "red", "score": ..., "box": {"xmin": ..., "ymin": ..., ...}}]'
        ),
        limits=(
            "One or two shapes that do not touch; of three or more it misses some, and it never "
            f"reports more than {QUERIES}. It does not tell a circle from a square. "
            "It "
            "still finds some shapes twice. Recall and precision are those of the pipeline's "
            "threshold of 0.5. It knows painted shapes on greyish grounds, and nothing of "
            "photographs."
        ),
        **vision.CARD | {"bounds": f"pictures of {SIZE} by {SIZE} pixels"},
    )
