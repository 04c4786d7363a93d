"""`tiny-digits`: reads a handwritten digit."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample
from transformers import ViTConfig, ViTForImageClassification

from tools.demo_models import common, vision

LABELS = {digit: str(digit) for digit in range(10)}
SIZE = 32
HELD_OUT = 360
STEPS = 1_500
BATCH = 64

Example = tuple[Image.Image, str]


def training() -> list[Example]:
    """Returns the training digits."""
    return _digits()[HELD_OUT:]


def held_out(count: int = HELD_OUT) -> list[Example]:
    """Returns at most 360 digits that were kept out of training: 8 by 8 pixels, bright ink on
    black.
    """
    return _digits()[:HELD_OUT][:count]


def _digits() -> list[Example]:
    from sklearn.datasets import load_digits  # pyright: ignore[reportMissingTypeStubs]

    bundle = cast(Any, load_digits())
    order = np.random.default_rng(common.SEED).permutation(len(bundle.target))
    ink = np.clip(bundle.images * 16, 0, 255).astype(np.uint8)
    return [(Image.fromarray(ink[at]).convert("RGB"), str(bundle.target[at])) for at in order]


def accuracy(
    model: ViTForImageClassification, processor: Any, examples: Sequence[Example]
) -> float:
    """Returns the share of digits that are classified correctly."""
    batch = vision.pixels(processor, [image for image, _ in examples])
    with torch.no_grad():
        choices = model(batch).logits.argmax(-1).tolist()
    right = [LABELS[choice] == label for choice, (_, label) in zip(choices, examples, strict=True)]
    return sum(right) / len(right)


def _moved(batch: Tensor) -> Tensor:
    """Returns digits rotated by up to 12 degrees, scaled and shifted. Half of them have dark ink on
    white.
    """
    count = len(batch)
    turn, wide, high, across, down = (2 * torch.rand(5, count) - 1).unbind()
    turn = turn * 0.21
    wide, high = 1 + 0.12 * wide, 1 + 0.12 * high
    rows = [
        torch.stack([wide * turn.cos(), -high * turn.sin(), 0.12 * across], 1),
        torch.stack([wide * turn.sin(), high * turn.cos(), 0.12 * down], 1),
    ]
    # The padding is zero, so the black background is shifted to zero and back.
    grid = affine_grid(torch.stack(rows, 1), list(batch.shape), align_corners=False)
    moved = grid_sample(batch + 1, grid, align_corners=False) - 1
    return moved * (1 - 2 * torch.randint(2, (count, 1, 1, 1)))


def _batches(processor: Any, examples: Sequence[Example]) -> Iterator[common.Batch]:
    images = vision.stored(processor, [image for image, _ in examples])
    labels = torch.tensor([int(label) for _, label in examples])
    for part in vision.shuffled(len(examples), BATCH):
        augmented = vision.shaken(_moved(vision.restored(images[part])))
        yield {"pixel_values": augmented, "labels": labels[part]}


def _model() -> ViTForImageClassification:
    model = ViTForImageClassification(
        ViTConfig(
            image_size=SIZE,
            patch_size=8,
            hidden_size=64,
            num_hidden_layers=5,
            num_attention_heads=4,
            intermediate_size=128,
            initializer_range=0.06,
            id2label=LABELS,
            label2id={label: at for at, label in LABELS.items()},
            problem_type="single_label_classification",
        )
    )
    vision.set_positions(model.vit.embeddings.position_embeddings[0], SIZE // 8)
    return model


def build(folder: Path) -> None:
    """Trains the classifier, measures it and writes its folder."""
    common.seed_everything()
    processor = vision.processor(SIZE)
    model = _model()
    batches = _batches(processor, training())
    common.fit(model, batches, lambda batch: model(**batch).loss, steps=STEPS, peak_rate=2e-3)
    common.save(model, processor, folder)
    common.write_card(folder, model, _card(model, processor))


def _card(model: ViTForImageClassification, processor: Any) -> common.Card:
    examples = held_out()
    dark = [(ImageOps.invert(image), label) for image, label in examples]
    return common.Card(
        title="tiny-digits: which handwritten digit is it?",
        pipeline_tag="image-classification",
        tags=("vit", "digits", "image-classification", "tiny"),
        summary=(
            "A ViT with five layers of 64 dimensions that reads one handwritten digit. The image "
            f"processor brings a picture of any size to {SIZE} by {SIZE} pixels."
        ),
        data=(
            f"The 1,797 digits of 8 by 8 pixels that come with scikit-learn, {HELD_OUT} of them "
            "held out, drawn at random with a fixed seed. In training they are turned, scaled, "
            "shifted and grained differently at every sight, and half are dark ink on white. The "
            "writers of held-out digits have written training digits too."
        ),
        evaluation=[
            ("accuracy, bright ink on black", _figure(model, processor, examples), len(examples)),
            ("accuracy, dark ink on white", _figure(model, processor, dark), len(dark)),
        ],
        example=(
            "from transformers import pipeline\n\n"
            'read = pipeline("image-classification", "tiny-digits")\n'
            'read("three.png", top_k=1)\n'
            '# [{"label": "3", "score": ...}]'
        ),
        limits=(
            "One digit that fills the picture, upright. It has seen nothing finer than 8 by 8 "
            "pixels, no digits inside a larger scene, and it calls anything else a digit too."
        ),
        **vision.CARD
        | {
            "source": (
                "The digits are the test set of Optical Recognition of Handwritten Digits "
                "(E. Alpaydin and\nC. Kaynak, UCI Machine Learning Repository, 1998, CC BY 4.0), "
                "as scikit-learn bundles it. They\nare read from there by `{build}`; nothing is "
                "downloaded."
            ),
            "bounds": f"pictures of {SIZE} by {SIZE} pixels",
            "repeatable": "The same digits are held out in every process.",
        },
    )


def _figure(model: ViTForImageClassification, processor: Any, examples: Sequence[Example]) -> float:
    return vision.rounded_down(accuracy(model, processor, examples))
