"""`tiny-vision`: a chat about pictures of coloured shapes."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    CLIPVisionConfig,
    GenerationConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    PreTrainedTokenizerFast,
)

from tools.demo_models import common, vision
from tools.demo_models.scenes import (
    COLOUR_OF,
    GROUND,
    KIND_OF,
    NAMES,
    described,
    training,
    unseen,
)
from tools.demo_models.shapes import Scene

SIZE = 32
PATCH = 16
PLACES = (SIZE // PATCH) ** 2
"""Number of tokens of a picture: one for each quarter."""
SCENES = 14_000
STEPS = 2_400
BATCH = 64
LONGEST = 256
"""Maximum tokens of a conversation."""

IMAGE, END_OF_TEXT, START, END = "<image>", "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SHOWN = ("What is in the picture?", "Describe the picture.")
UNSEEN = "I see no picture."
GREETINGS = {"Hello!": "Hello! Show me a picture.", "Hi!": "Hello! Show me a picture."}
TEMPLATE = """\
{%- for message in messages -%}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- if message.content is string -%}
        {{- message.content }}
    {%- else -%}
        {%- for part in message.content -%}
            {{- '<image>' if part.type == 'image' else part.text }}
        {%- endfor -%}
    {%- endif -%}
    {{- '<|im_end|>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- '<|im_start|>assistant\\n' }}
{%- endif -%}
"""


def asked(rng: Random, scene: Scene) -> tuple[str, str]:
    """Returns a question about a picture, and its answer."""
    candidates = [(rng.choice(SHOWN), described(scene.shapes))]
    for shape in scene.shapes:
        if sum(other.kind == shape.kind for other in scene.shapes) == 1:
            candidates.append((rng.choice(COLOUR_OF).format(shape.kind), shape.colour))
        if sum(other.colour == shape.colour for other in scene.shapes) == 1:
            candidates.append((rng.choice(KIND_OF).format(shape.colour), shape.kind))
    return rng.choice(candidates)


def prompt(question: str, *, seen: bool) -> str:
    """Returns a first question in the chat template, with all tokens of its picture."""
    picture = IMAGE * PLACES if seen else ""
    return f"{START}user\n{picture}{question}{END}\n{START}assistant\n"


def held_out(count: int, seed: int = 3) -> list[tuple[Scene, str, str]]:
    """Returns pictures of two shapes that never occur together in training, each with a
    question.
    """
    rng = Random(seed)  # noqa: S311 - draws pictures, no secrets
    return [(scene, *asked(rng, scene)) for scene in unseen(rng, count, (0, 1, 0))]


def accuracy(
    model: Any, tokenizer: Any, processor: Any, examples: Sequence[tuple[Scene, str, str]]
) -> float:
    """Returns the share of answers with every word correct."""
    right = 0
    for scene, question, answer in examples:
        text = tokenizer(prompt(question, seen=True), return_tensors="pt")
        with torch.no_grad():
            generated = model.generate(
                **text, pixel_values=vision.pixels(processor, [scene.image]), max_new_tokens=16
            )
        written = tokenizer.decode(
            generated[0, text["input_ids"].shape[1] :], skip_special_tokens=True
        )
        right += written == answer
    return right / len(examples)


def _tokenizer() -> PreTrainedTokenizerFast:
    corpus = [*SHOWN, *COLOUR_OF, *KIND_OF, *NAMES, UNSEEN, *GREETINGS, *GREETINGS.values()]
    corpus += [
        "a red circle left of a blue square",
        "a green triangle above a",
        "user\nassistant\n",
    ]
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        special_tokens=[END_OF_TEXT, START, END, IMAGE],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    raw.train_from_iterator(corpus * 2, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=raw,
        pad_token=END_OF_TEXT,
        eos_token=END,
        model_max_length=LONGEST,
        model_input_names=["input_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,
        chat_template=TEMPLATE,
    )


def _batches(
    tokenizer: Any, processor: Any, scenes: Sequence[Scene], rng: Random
) -> Iterator[common.Batch]:
    """Yields batches of questions about pictures. Some questions have no picture."""
    images = vision.stored(processor, [scene.image for scene in scenes])
    for part in vision.shuffled(len(scenes), BATCH):
        pairs = [(*asked(rng, scenes[int(at)]), True) for at in part]
        for at in range(BATCH // 16):
            without = rng.choice([*GREETINGS.items(), (pairs[at][0], UNSEEN)])
            pairs[at] = (*without, False)
        has_picture = torch.tensor([pair[2] for pair in pairs])
        pixels = vision.shaken(vision.restored(images[part]))[has_picture]
        yield {"pixel_values": pixels, **_labelled(tokenizer, pairs)}


def _labelled(tokenizer: Any, pairs: Sequence[tuple[str, str, bool]]) -> common.Batch:
    """Returns tokens `[pairs, longest]` and labels. Only the answers are labelled."""
    rows: list[list[int]] = []
    labels: list[list[int]] = []
    for question, answer, has_picture in pairs:
        before: list[int] = tokenizer(prompt(question, seen=has_picture))["input_ids"]
        after: list[int] = tokenizer(answer + END)["input_ids"]
        rows.append(before + after)
        labels.append([-100] * len(before) + after)
    mask = common.padded([[1] * len(row) for row in rows], 0)
    ids = common.padded(rows, tokenizer.pad_token_id)
    return {"input_ids": ids, "attention_mask": mask, "labels": common.padded(labels, -100)}


def _model(tokenizer: Any) -> LlavaForConditionalGeneration:
    shared: dict[str, Any] = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "initializer_range": 0.06,
    }
    text = LlamaConfig(
        vocab_size=len(tokenizer),
        max_position_embeddings=LONGEST,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        **shared,
    )
    config = LlavaConfig(
        vision_config=CLIPVisionConfig(image_size=SIZE, patch_size=PATCH, **shared),
        text_config=text,
        image_token_id=tokenizer.convert_tokens_to_ids(IMAGE),
        image_seq_length=PLACES,
        vision_feature_layer=-1,
        tie_word_embeddings=False,
    )
    model: Any = LlavaForConditionalGeneration(config)
    model.generation_config = GenerationConfig(
        do_sample=False, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
    )
    table = model.model.vision_tower.embeddings.position_embedding.weight
    vision.set_positions(table, SIZE // PATCH)
    return model


def build(folder: Path) -> None:
    """Trains both halves together, measures them and writes their folder."""
    rng = common.seed_everything()
    tokenizer = _tokenizer()
    processor = vision.processor(SIZE)
    model: Any = _model(tokenizer)
    batches = _batches(tokenizer, processor, training(rng, SCENES, (1, 3, 0)), rng)
    common.fit(model, batches, lambda batch: model(**batch).loss, steps=STEPS, peak_rate=2e-3)
    common.save(model, processor, folder)
    tokenizer.save_pretrained(folder)  # pyright: ignore[reportUnknownMemberType]
    processor_config = {
        "processor_class": "LlavaProcessor",
        "image_token": IMAGE,
        "num_additional_image_tokens": 1,
        "patch_size": PATCH,
        "vision_feature_select_strategy": "default",
    }
    (folder / "processor_config.json").write_text(
        json.dumps(processor_config, indent=2) + "\n", "utf-8"
    )
    common.write_card(folder, model, _card(model, tokenizer, processor))


def _card(model: Any, tokenizer: Any, processor: Any) -> common.Card:
    examples = held_out(500)
    score = vision.rounded_down(accuracy(model, tokenizer, processor, examples))
    return common.Card(
        title="tiny-vision: a chat about shapes",
        pipeline_tag="image-text-to-text",
        tags=("llava", "clip", "llama", "shapes", "image-text-to-text", "tiny"),
        summary=(
            "A CLIP vision tower and a Llama, two layers of 64 dimensions each, put together as in "
            'LLaVA. It answers "What colour is the square?", "What shape is red?" and "What is in '
            f'the picture?". The image processor brings a picture to {SIZE} by {SIZE} pixels, of '
            "which each quarter is a token. Asked without a picture, it says that it sees none."
        ),
        data=(
            f"Questions about {SCENES:,} pictures of 64 by 64 pixels, three in four of them with "
            "two different shapes side by side or one above the other, the rest with one. "
            f"{GROUND} One in five pairs of shapes (a red circle and a blue square, say) was held "
            "out. One question in sixteen came without a picture."
        ),
        evaluation=[("whole answers right, two shapes never seen together", score, len(examples))],
        example=(
            "from PIL import Image\n"
            "from transformers import AutoModelForImageTextToText, AutoProcessor\n\n"
            'processor = AutoProcessor.from_pretrained("tiny-vision")\n'
            'model = AutoModelForImageTextToText.from_pretrained("tiny-vision")\n'
            'asked = [{"type": "image", "image": Image.open("shapes.png")},\n'
            '         {"type": "text", "text": "What colour is the square?"}]\n'
            "inputs = processor.apply_chat_template(\n"
            '    [{"role": "user", "content": asked}], add_generation_prompt=True,\n'
            '    tokenize=True, return_dict=True, return_tensors="pt")\n'
            "processor.decode(model.generate(**inputs, max_new_tokens=16)[0])\n"
            '# "… blue<|im_end|>"'
        ),
        limits=(
            "One question about one picture of one or two shapes of the three kinds and five "
            "colours. It knows no other words, and describes any other picture in these."
        ),
        **vision.CARD
        | {"language": "en", "bounds": f"{LONGEST} tokens, pictures of {SIZE} by {SIZE} pixels"},
    )
