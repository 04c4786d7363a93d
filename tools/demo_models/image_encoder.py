"""`tiny-image-encoder`: maps pictures of similar shapes to similar vectors."""

from collections.abc import Container, Iterator, Sequence
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import normalize
from transformers import ViTConfig, ViTModel

from tools.demo_models import common, vision
from tools.demo_models.shapes import COLOURS, KINDS, Scene, portrait

SIZE = 48
PATCH = 8
SCENES = 12_000
STEPS = 1_700
BATCH = 64
UNSEEN = frozenset({"red star", "green triangle", "blue circle", "purple square"})
"""Names that only held-out pictures have. Their kinds and colours were trained on in other
combinations.
"""


@cache
def held_out(count: int, size: int = 64) -> list[tuple[Image.Image, str]]:
    """Returns pictures that were not trained on, each with its name, such as `red circle`."""
    rng = Random(common.SEED + 1)  # noqa: S311 - draws pictures, no secrets
    scenes = [portrait(rng, size) for _ in range(count)]
    return [(scene.image, scene.shapes[0].name) for scene in scenes]


def _training(rng: Random) -> list[Scene]:
    drawn = (portrait(rng) for _ in range(SCENES * len(COLOURS) * len(KINDS)))
    known = (scene for scene in drawn if scene.shapes[0].name not in UNSEEN)
    return [scene for _, scene in zip(range(SCENES), known, strict=False)]


def embedded(model: ViTModel, processor: Any, images: Sequence[Image.Image]) -> Tensor:
    """Returns `[images, 64]`: the pooler's output, which the pipeline returns with `pool`."""
    with torch.no_grad():
        return model(vision.pixels(processor, images)).pooler_output


def neighbours(
    vectors: Tensor, names: Sequence[str], asked: Container[str] | None = None
) -> list[bool]:
    """Returns for each picture True if the other picture with the highest cosine has the same name.

    With `asked`, only pictures with these names are answered. All pictures are candidates.
    """
    return [
        names[at] == name
        for at, name in zip(vision.nearest(vectors), names, strict=True)
        if asked is None or name in asked
    ]


def _loss(vectors: Tensor, kinds: Tensor, colours: Tensor) -> Tensor:
    """Returns the squared error of each pair's cosine. The target is 1 for the same name, and a
    half for the same kind or colour only.

    The cosine of two pictures is then the sum of kind and colour, also for new combinations.
    """
    unit = normalize(vectors, dim=1)
    alike = [(each[:, None] == each).float() for each in (kinds, colours)]
    apart = ~torch.eye(len(unit), dtype=torch.bool)
    return (unit @ unit.T - sum(alike) / 2)[apart].square().mean()


def _batches(processor: Any, rng: Random) -> Iterator[common.Batch]:
    scenes = _training(rng)
    images = vision.stored(processor, [scene.image for scene in scenes])
    kinds = torch.tensor([KINDS.index(scene.shapes[0].kind) for scene in scenes])
    colours = torch.tensor([[*COLOURS].index(scene.shapes[0].colour) for scene in scenes])
    for part in vision.shuffled(SCENES, BATCH):
        augmented = vision.shaken(vision.restored(images[part]))
        yield {"pixel_values": augmented, "kinds": kinds[part], "colours": colours[part]}


def _model() -> ViTModel:
    model = ViTModel(
        ViTConfig(
            image_size=SIZE,
            patch_size=PATCH,
            hidden_size=64,
            num_hidden_layers=4,
            num_attention_heads=4,
            intermediate_size=128,
            initializer_range=0.06,
        )
    )
    vision.set_positions(model.embeddings.position_embeddings[0], SIZE // PATCH)
    return model


def build(folder: Path) -> None:
    """Trains the encoder, measures it and writes its folder."""
    rng = common.seed_everything()
    processor = vision.processor(SIZE)
    model = _model()

    def loss_of(batch: common.Batch) -> Tensor:
        vectors = model(batch["pixel_values"]).pooler_output
        return _loss(vectors, batch["kinds"], batch["colours"])

    common.fit(model, _batches(processor, rng), loss_of, steps=STEPS, peak_rate=2e-3)
    common.save(model, processor, folder)
    common.write_card(folder, model, _card(model, processor))


def _figures(model: ViTModel, processor: Any) -> list[tuple[str, float, int]]:
    images, names = zip(*held_out(1000), strict=True)
    vectors = embedded(model, processor, images)
    large, large_names = zip(*held_out(200, 200), strict=True)
    answers = {
        "nearest neighbour has the same name": neighbours(vectors, names),
        "the same kind": neighbours(vectors, [name.split()[1] for name in names]),
        "the same colour": neighbours(vectors, [name.split()[0] for name in names]),
        "the same name, of a pair that was not trained on": neighbours(vectors, names, UNSEEN),
        "the same name, pictures of 200 by 200 pixels": neighbours(
            embedded(model, processor, large), large_names
        ),
    }
    return [
        (measurement, vision.rounded_down(sum(hits) / len(hits)), len(hits))
        for measurement, hits in answers.items()
    ]


def _card(model: ViTModel, processor: Any) -> common.Card:
    return common.Card(
        title="tiny-image-encoder: pictures of like shapes get like vectors",
        pipeline_tag="image-feature-extraction",
        tags=("vit", "shapes", "image-feature-extraction", "tiny"),
        summary=(
            "A ViT with four layers whose pooled vector of 64 numbers says which shape of which "
            "colour a picture shows. The cosine of two pictures is near 1 where both are the "
            "same, near a half where either is, and near 0 otherwise. The image processor brings "
            f"a picture to {SIZE} by {SIZE} pixels."
        ),
        data=(
            f"{SCENES:,} pictures of 64 by 64 pixels with one shape each: {vision.PORTRAIT}. No "
            f"training picture shows a {', '.join(sorted(UNSEEN)[:-1])} or {max(UNSEEN)}. Held "
            "out are other draws of all 20 pairs of colour and kind, these four included."
        ),
        evaluation=_figures(model, processor),
        example=(
            "from transformers import pipeline\n\n"
            'encode = pipeline("image-feature-extraction", "tiny-image-encoder", pool=True)\n'
            'encode("shape.png")\n'
            "# [[0.31, -0.87, ...]]"
        ),
        limits=(
            "One shape in a picture; it knows nothing of its place, size or turn, or of what was "
            "photographed. Without pooling there is a vector for each patch, and those were not "
            "trained for anything."
        ),
        **vision.CARD | {"bounds": f"pictures of {SIZE} by {SIZE} pixels"},
    )
