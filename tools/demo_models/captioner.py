"""`tiny-captioner`: names the shapes in a picture and their relative positions."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from transformers import (
    BertTokenizer,
    GenerationConfig,
    GPT2Config,
    VisionEncoderDecoderConfig,
    VisionEncoderDecoderModel,
    ViTConfig,
)

from tools.demo_models import common, vision
from tools.demo_models.scenes import GROUND, NAMES, described, held_out_captions, mirrored, training
from tools.demo_models.shapes import Scene

SIZE = 32
PATCH = 16
SCENES = 14_000
STEPS = 2_200
BATCH = 64
LONGEST = 16
"""Maximum tokens of a caption."""
WORDS = ("a", "left", "of", "above", *dict.fromkeys(" ".join(NAMES).split()))


def captions(
    model: VisionEncoderDecoderModel,
    tokenizer: BertTokenizer,
    processor: Any,
    images: Sequence[Image.Image],
) -> list[str]:
    """Returns the model's caption of each picture."""
    writer: Any = model
    reader: Any = tokenizer
    with torch.no_grad():
        written = writer.generate(vision.pixels(processor, images))
    return reader.batch_decode(written, skip_special_tokens=True)


def accuracy(
    model: VisionEncoderDecoderModel,
    tokenizer: BertTokenizer,
    processor: Any,
    examples: Sequence[tuple[Image.Image, str]],
) -> float:
    """Returns the share of captions with every word correct."""
    written = captions(model, tokenizer, processor, [image for image, _ in examples])
    return sum(a == b for a, (_, b) in zip(written, examples, strict=True)) / len(examples)


def _labels(tokenizer: BertTokenizer, texts: Sequence[str]) -> Tensor:
    """Returns the target tokens as `[texts, longest]`. The loss ignores the padding of short
    texts.
    """
    rows: list[list[int]] = tokenizer(list(texts))["input_ids"]
    return common.padded([row[1:] for row in rows], -100)


def _batches(
    tokenizer: BertTokenizer, processor: Any, scenes: Sequence[Scene]
) -> Iterator[common.Batch]:
    """Yields batches of pictures and captions. Every other batch is mirrored."""
    images = vision.stored(processor, [scene.image for scene in scenes])
    texts = [described(scene.shapes) for scene in scenes]
    labels = [_labels(tokenizer, each) for each in (texts, [mirrored(text) for text in texts])]
    for at, part in enumerate(vision.shuffled(len(scenes), BATCH)):
        pixels = vision.shaken(vision.restored(images[part]))
        yield {
            "pixel_values": pixels.flip(3) if at % 2 else pixels,
            "labels": labels[at % 2][part],
        }


def _model(tokenizer: BertTokenizer) -> VisionEncoderDecoderModel:
    encoder = ViTConfig(
        image_size=SIZE,
        patch_size=PATCH,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        initializer_range=0.06,
    )
    decoder = GPT2Config(
        vocab_size=len(tokenizer),
        n_positions=LONGEST,
        n_embd=64,
        n_layer=2,
        n_head=4,
        n_inner=128,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        initializer_range=0.06,
        bos_token_id=common.CLS,
        eos_token_id=common.SEP,
        pad_token_id=common.PAD,
    )
    both: Any = VisionEncoderDecoderConfig
    config = both.from_encoder_decoder_configs(encoder, decoder)
    special = {
        "decoder_start_token_id": common.CLS,
        "eos_token_id": common.SEP,
        "pad_token_id": common.PAD,
    }
    for name, token in special.items():
        setattr(config, name, token)
    model: Any = VisionEncoderDecoderModel(config)
    model.generation_config = GenerationConfig(max_new_tokens=LONGEST - 1, **special)
    vision.set_positions(model.encoder.embeddings.position_embeddings[0], SIZE // PATCH)
    return model


def build(folder: Path) -> None:
    """Trains encoder and decoder together, measures them and writes their folder."""
    rng = common.seed_everything()
    tokenizer = common.train_tokenizer(WORDS, vocab_size=0, lowercase=True, whole_words=WORDS)
    processor = vision.processor(SIZE)
    model = _model(tokenizer)
    batches = _batches(tokenizer, processor, training(rng, SCENES, (1, 3, 0)))
    common.fit(model, batches, lambda batch: model(**batch).loss, steps=STEPS, peak_rate=2e-3)
    common.save(model, processor, folder)
    tokenizer.save_pretrained(folder)  # pyright: ignore[reportUnknownMemberType]
    common.write_card(folder, model, _card(model, tokenizer, processor))


def _card(
    model: VisionEncoderDecoderModel, tokenizer: BertTokenizer, processor: Any
) -> common.Card:
    examples = held_out_captions(500)
    score = vision.rounded_down(accuracy(model, tokenizer, processor, examples))
    return common.Card(
        title="tiny-captioner: what is in the picture?",
        pipeline_tag="image-to-text",
        tags=("vision-encoder-decoder", "vit", "gpt2", "shapes", "image-to-text", "tiny"),
        summary=(
            "A ViT with two layers of 64 dimensions whose pictures a GPT-2 with two layers puts "
            'into words: "a red circle", or "a red circle left of a blue square". Of two shapes '
            "it names the left or the upper one first. The image processor brings a picture to "
            f"{SIZE} by {SIZE} pixels."
        ),
        data=(
            f"{SCENES:,} pictures of 64 by 64 pixels, three in four of them with two different "
            "shapes side by side or one above the other, the rest with one. "
            f"{GROUND} Half of the time they are mirrored. One in five pairs of shapes (a red "
            "circle and a blue square, say) was held out."
        ),
        evaluation=[("whole captions right, two shapes never seen together", score, len(examples))],
        example=(
            "import torch\n"
            "from PIL import Image\n"
            "from transformers import AutoImageProcessor, AutoModelForImageTextToText, "
            "AutoTokenizer\n\n"
            'processor = AutoImageProcessor.from_pretrained("tiny-captioner")\n'
            'model = AutoModelForImageTextToText.from_pretrained("tiny-captioner")\n'
            'tokenizer = AutoTokenizer.from_pretrained("tiny-captioner")\n'
            'picture = processor(Image.open("shapes.png"), return_tensors="pt")\n'
            "tokenizer.batch_decode(model.generate(**picture), skip_special_tokens=True)\n"
            '# ["a red circle left of a blue square"]'
        ),
        limits=(
            "One or two shapes, each near the middle of a quarter of a dark picture, of the three "
            "kinds and five colours. It knows no other words, and describes any other picture in "
            "these."
        ),
        **vision.CARD | {"language": "en", "bounds": f"pictures of {SIZE} by {SIZE} pixels"},
    )
