"""`tiny-clip`: selects which of the caller's labels fit a picture of a shape."""

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import torch
from PIL import Image
from tokenizers import pre_tokenizers
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import CLIPConfig, CLIPImageProcessorPil, CLIPModel, CLIPTokenizer

from tools.demo_models import common, vision
from tools.demo_models.shapes import COLOURS, KINDS, Scene, portrait

SIZE = 48
PATCH = 8
SCENES = 12_000
STEPS = 1_600
BATCH = 64
RATE = 1e-3
LONGEST = 32

NAMES = tuple(f"{colour} {kind}" for colour in COLOURS for kind in KINDS)
LEVELS = (
    (NAMES, ("a {}", "{}")),
    (KINDS, ("a {}", "{}")),
    (tuple(COLOURS), ("something {}", "{}", "a {} shape")),
)
"""Properties that distinguish pictures, with the phrases for them."""
TEMPLATES = (
    "{}",
    "a photo of {}",
    "This is a photo of {}.",
    "a picture of {}.",
    "This is {}.",
    "an image showing {}",
    "There is {} in the picture.",
)
HYPOTHESIS = "This is a photo of {}."
"""The pipeline's own template for the caller's labels."""
UNSEEN = "An image of {} in this photo."


class Clip(NamedTuple):
    """The model and the preprocessors of its inputs."""

    model: CLIPModel
    words: CLIPTokenizer
    processor: Any


@cache
def held_out(count: int, size: int = 64) -> list[tuple[Image.Image, str]]:
    """Returns pictures that were not trained on, each with its name, such as `red circle`."""
    rng = Random(common.SEED + 1)  # noqa: S311 - draws pictures, no secrets
    scenes = [portrait(rng, size) for _ in range(count)]
    return [(scene.image, scene.shapes[0].name) for scene in scenes]


def tokenizer() -> CLIPTokenizer:
    """Returns CLIP's byte-level BPE with only the merges that make each known word a single
    token.
    """
    words = set(NAMES[0].split())
    for labels, phrases in LEVELS:
        words |= {word for each in (*labels, *phrases, *TEMPLATES) for word in each.split()}
    words = {word.strip(".").lower() for word in words if word.strip(".{}")}
    merges = _merges(sorted(words))
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    special = ["<|startoftext|>", "<|endoftext|>"]
    pieces = [*letters, *(f"{each}</w>" for each in letters), *(a + b for a, b in merges), *special]
    vocab = {piece: at for at, piece in enumerate(dict.fromkeys(pieces))}
    return CLIPTokenizer(vocab=vocab, merges=merges, model_max_length=LONGEST)  # pyright: ignore[reportArgumentType]


def _merges(words: Sequence[str]) -> list[tuple[str, str]]:
    spelt = [[*word[:-1], f"{word[-1]}</w>"] for word in words]
    merges: list[tuple[str, str]] = []
    while pairs := Counter(pair for word in spelt for pair in pairwise(word)):
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        merges.append(best)
        for word in spelt:
            at = 0
            while at < len(word) - 1:
                if (word[at], word[at + 1]) == best:
                    word[at : at + 2] = ["".join(best)]
                at += 1
    return merges


def scores(
    clip: Clip,
    images: Sequence[Image.Image],
    labels: Sequence[str],
    template: str = HYPOTHESIS,
) -> Tensor:
    """Returns `[images, labels]`. Each row is a distribution, as in the pipeline's answer."""
    texts = [template.format(label) for label in labels]
    text = clip.words(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        batch = vision.pixels(clip.processor, images)
        return clip.model(**text, pixel_values=batch).logits_per_image.softmax(-1)


def _loss(model: CLIPModel, pixels: Tensor, text: Any, truth: Tensor) -> Tensor:
    """Returns the contrastive loss in both directions. `truth` `[images]` is the index of the text
    that fits each image.

    A text that fits several pictures of the batch shares its probability mass among them.
    """
    logits = model(**text, pixel_values=pixels).logits_per_image
    fits = torch.nn.functional.one_hot(truth, logits.shape[1]).float().T
    present = fits.sum(1) > 0
    shares = fits[present] / fits[present].sum(1, keepdim=True)
    return (cross_entropy(logits, truth) + cross_entropy(logits.T[present], shares)) / 2


def _batches(processor: Any, words: CLIPTokenizer, rng: Random) -> Iterator[common.Batch]:
    scenes = [portrait(rng) for _ in range(SCENES)]
    images = vision.stored(processor, [scene.image for scene in scenes])
    truths = [torch.tensor([_truth(scene, level) for scene in scenes]) for level in range(3)]
    for part in vision.shuffled(SCENES, BATCH):
        (level,) = rng.choices(range(3), (4, 1, 1))
        labels, phrases = LEVELS[level]
        template = rng.choice(TEMPLATES).format(rng.choice(phrases))
        text = words([template.format(each) for each in labels], padding=True, return_tensors="pt")
        pixels = vision.shaken(vision.restored(images[part]))
        yield {**text, "pixel_values": pixels, "truth": truths[level][part]}


def _truth(scene: Scene, level: int) -> int:
    shape = scene.shapes[0]
    return LEVELS[level][0].index((shape.name, shape.kind, shape.colour)[level])


def _model(words: CLIPTokenizer) -> CLIPModel:
    shared = {"num_attention_heads": 4, "projection_dim": 48}
    text = {
        "vocab_size": len(words),
        "hidden_size": 48,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "max_position_embeddings": LONGEST,
        "bos_token_id": words.bos_token_id,
        "eos_token_id": words.eos_token_id,
        "pad_token_id": words.pad_token_id,
    }
    image = {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 3,
        "image_size": SIZE,
        "patch_size": PATCH,
        # Makes the magnitudes of patches and positions equal.
        "initializer_range": 0.06,
    }
    config = CLIPConfig(text_config=text | shared, vision_config=image | shared, projection_dim=48)
    model = CLIPModel(config)
    table: Any = model.vision_model.embeddings.position_embedding
    vision.set_positions(table.weight, SIZE // PATCH)
    return model


def build(folder: Path) -> None:
    """Trains both encoders, measures them and writes their folder."""
    rng = common.seed_everything()
    words = tokenizer()
    processor = vision.processor(SIZE, CLIPImageProcessorPil, do_center_crop=False)
    model = _model(words)

    def loss_of(batch: common.Batch) -> Tensor:
        text = {name: batch[name] for name in ("input_ids", "attention_mask")}
        return _loss(model, batch["pixel_values"], text, batch["truth"])

    common.fit(model, _batches(processor, words, rng), loss_of, steps=STEPS, peak_rate=RATE)
    common.save(model, processor, folder)
    words.save_pretrained(folder)  # pyright: ignore[reportUnknownMemberType]
    common.write_card(folder, model, _card(Clip(model, words, processor)))


def _accuracy(
    clip: Clip,
    *,
    count: int = 1000,
    level: int = 0,
    phrase: str = "a {}",
    template: str = HYPOTHESIS,
    size: int = 64,
) -> float:
    examples = held_out(count, size)
    labels = LEVELS[level][0]
    captions = [phrase.format(label) for label in labels]
    images = [image for image, _ in examples]
    choices = [int(row.argmax()) for row in scores(clip, images, captions, template)]
    right = [
        labels[choice] in (name, *name.split())
        for choice, (_, name) in zip(choices, examples, strict=True)
    ]
    return vision.rounded_down(sum(right) / count)


def _card(clip: Clip) -> common.Card:
    measured: list[tuple[str, dict[str, Any]]] = [
        (f'accuracy among 20 names, "{HYPOTHESIS.format("a red circle")}"', {}),
        (f'accuracy among 20 names, "{UNSEEN.format("a red circle")}"', {"template": UNSEEN}),
        ("accuracy among 4 kinds", {"level": 1}),
        ("accuracy among 5 colours", {"level": 2, "phrase": "something {}"}),
        ("accuracy among 20 names, pictures of 200 by 200 pixels", {"size": 200, "count": 200}),
    ]
    return common.Card(
        title="tiny-clip: which words fit a picture of a shape?",
        pipeline_tag="zero-shot-image-classification",
        tags=("clip", "shapes", "zero-shot-image-classification", "tiny"),
        summary=(
            "A CLIP with an image tower of three layers and a text tower of two, trained so that "
            'a picture of a coloured shape lies next to the words for it: "a red circle", "a '
            f'circle", "something red". The image processor brings a picture to {SIZE} by {SIZE} '
            "pixels."
        ),
        data=(
            f"{SCENES:,} pictures of 64 by 64 pixels with one shape each: {vision.PORTRAIT}. Each "
            f"came with the words for it in {len(TEMPLATES)} templates. Held out are other draws "
            "of the same 20 pairs of colour and kind, and a template that was not trained on."
        ),
        evaluation=[
            (measurement, _accuracy(clip, **options), options.get("count", 1000))
            for measurement, options in measured
        ],
        example=(
            "from transformers import pipeline\n\n"
            'judge = pipeline("zero-shot-image-classification", "tiny-clip")\n'
            'judge("shape.png", candidate_labels=["a red circle", "a blue circle", "a star"])\n'
            '# [{"label": "a red circle", "score": ...}, ...]'
        ),
        limits=(
            "It knows the words of its captions and no others, one shape in a picture, and no "
            "counts or places. It picks among the labels that it is given, fitting or not, and "
            "the scores of labels that both fit (a red circle, a circle) say little."
        ),
        **vision.CARD | {"language": "en", "bounds": f"pictures of {SIZE} by {SIZE} pixels"},
    )
