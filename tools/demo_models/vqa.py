"""`tiny-vqa`: answers questions about pictures of one to three shapes."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import torch
from transformers import (
    BertTokenizer,
    ViltConfig,
    ViltForQuestionAnswering,
    ViltImageProcessorPil,
)

from tools.demo_models import common, vision
from tools.demo_models.scenes import (
    ANSWERS,
    COLOUR_OF,
    COUNTING,
    GROUND,
    KIND_OF,
    PRESENT,
    Asked,
    held_out_questions,
    questions,
    training,
)
from tools.demo_models.shapes import COLOURS, Scene

SIZE = 32
PATCH = 16
SCENES = 14_000
STEPS = 4_600
BATCH = 64
LONGEST = 24
"""Maximum tokens of a question."""


def image_processor() -> Any:
    """Returns a processor that scales a picture's shorter side to 32 pixels and its sides to whole
    patches.
    """
    kind: Any = ViltImageProcessorPil
    return kind(
        size={"shortest_edge": SIZE},
        size_divisor=PATCH,
        do_convert_rgb=True,
        image_mean=[0.5] * 3,
        image_std=[0.5] * 3,
    )


def answers(
    model: ViltForQuestionAnswering,
    tokenizer: BertTokenizer,
    processor: Any,
    asked: Sequence[Asked],
) -> list[str]:
    """Returns the model's answer to each question, in batches of 64."""
    predicted: list[str] = []
    for start in range(0, len(asked), 64):
        part = asked[start : start + 64]
        text = common.inputs(tokenizer([each.question for each in part])["input_ids"])
        images = processor([each.image for each in part], return_tensors="pt")
        with torch.no_grad():
            choices = model(**text, **images).logits.argmax(-1).tolist()
        predicted += [ANSWERS[choice] for choice in choices]
    return predicted


def accuracy(
    model: ViltForQuestionAnswering,
    tokenizer: BertTokenizer,
    processor: Any,
    asked: Sequence[Asked],
) -> float:
    """Returns the share of questions that are answered correctly."""
    predicted = answers(model, tokenizer, processor, asked)
    return sum(a == b.answer for a, b in zip(predicted, asked, strict=True)) / len(asked)


def _tokenizer() -> BertTokenizer:
    corpus = " ".join((*COUNTING, *COLOUR_OF, *KIND_OF, *PRESENT, *ANSWERS)).lower()
    words = dict.fromkeys(corpus.replace("{}", " ").replace("?", " ? ").split())
    tokenizer = common.train_tokenizer([corpus], vocab_size=0, lowercase=True, whole_words=words)
    tokenizer.model_max_length = LONGEST
    return tokenizer


def _batches(
    tokenizer: BertTokenizer, processor: Any, scenes: Sequence[Scene], rng: Random
) -> Iterator[common.Batch]:
    """Yields batches of pictures, each with one of its questions."""
    images = vision.stored(processor, [scene.image for scene in scenes])
    right = torch.eye(len(ANSWERS))
    for part in vision.shuffled(len(scenes), BATCH):
        chosen = [rng.choice(questions(rng, scenes[int(at)].shapes)) for at in part]
        labels = right[[ANSWERS.index(answer) for _, answer in chosen]]
        text = common.inputs(tokenizer([question for question, _ in chosen])["input_ids"])
        pixels = vision.shaken(vision.restored(images[part]))
        yield {**text, "pixel_values": pixels, "labels": labels}


def _model(tokenizer: BertTokenizer) -> ViltForQuestionAnswering:
    model = ViltForQuestionAnswering(
        ViltConfig(
            vocab_size=len(tokenizer),
            max_position_embeddings=LONGEST,
            image_size=SIZE,
            patch_size=PATCH,
            hidden_size=64,
            num_hidden_layers=4,
            num_attention_heads=4,
            intermediate_size=128,
            initializer_range=0.06,
            pad_token_id=common.PAD,
            id2label=dict(enumerate(ANSWERS)),
            label2id={answer: at for at, answer in enumerate(ANSWERS)},
        )
    )
    table: Any = model.vilt.embeddings.position_embeddings
    vision.set_positions(table[0], SIZE // PATCH)
    return model


def build(folder: Path) -> None:
    """Trains the model, measures it and writes its folder."""
    rng = common.seed_everything()
    tokenizer, processor = _tokenizer(), image_processor()
    model = _model(tokenizer)
    batches = _batches(tokenizer, processor, training(rng, SCENES, (2, 2, 1)), rng)
    common.fit(model, batches, lambda batch: model(**batch).loss, steps=STEPS, peak_rate=2e-3)
    common.save(model, processor, folder)
    tokenizer.save_pretrained(folder)  # pyright: ignore[reportUnknownMemberType]
    common.write_card(folder, model, _card(model, tokenizer, processor))


def _card(model: ViltForQuestionAnswering, tokenizer: BertTokenizer, processor: Any) -> common.Card:
    examples = held_out_questions(600)
    sorts = {
        "all questions": ANSWERS,
        "answers yes and no": ANSWERS[:2],
        "answers that are colours": tuple(COLOURS),
        "answers that are shapes": ANSWERS[-6:-3],
        "answers that are numbers": ANSWERS[-3:],
    }
    parts = {
        f"accuracy, {measurement}": [each for each in examples if each.answer in sort]
        for measurement, sort in sorts.items()
    }
    return common.Card(
        title="tiny-vqa: questions about pictures of shapes",
        pipeline_tag="visual-question-answering",
        tags=("vilt", "shapes", "visual-question-answering", "tiny"),
        summary=(
            "A ViLT with four layers of 64 dimensions that picks the answer to a question about a "
            f"picture from {len(ANSWERS)}: {', '.join(ANSWERS)}. It takes the questions "
            f'"{COLOUR_OF[0].format("circle")}", "{KIND_OF[0].format("red")}", "{COUNTING[0]}", '
            f'"{PRESENT[0].format("triangle")}", "{PRESENT[0].format("red shape")}" and a second '
            "wording of each."
        ),
        data=(
            f"{SCENES:,} pictures of 64 by 64 pixels with one to three different shapes. {GROUND} "
            "One in five sets of shapes (a red circle and a blue square, say) was held out; one "
            "in four held-out pictures shows a single shape."
        ),
        evaluation=[
            (
                measurement,
                vision.rounded_down(accuracy(model, tokenizer, processor, part)),
                len(part),
            )
            for measurement, part in parts.items()
        ],
        example=(
            "import torch\n"
            "from PIL import Image\n"
            "from transformers import AutoImageProcessor, AutoTokenizer, "
            "ViltForQuestionAnswering\n\n"
            'processor = AutoImageProcessor.from_pretrained("tiny-vqa")\n'
            'tokenizer = AutoTokenizer.from_pretrained("tiny-vqa")\n'
            'model = ViltForQuestionAnswering.from_pretrained("tiny-vqa")\n'
            'picture = processor(Image.open("shapes.png"), return_tensors="pt")\n'
            'question = tokenizer("What colour is the circle?", return_tensors="pt")\n'
            "model.config.id2label[model(**picture, **question).logits.argmax().item()]\n"
            '# "red"'
        ),
        limits=(
            "At most three shapes, each near the middle of a quarter of a dark picture, and the "
            "ten wordings of its questions. A question about what is not in the picture, or about "
            "one of two such shapes, gets an answer all the same."
        ),
        **vision.CARD
        | {
            "language": "en",
            "bounds": f"at most {LONGEST} tokens a question, pictures {SIZE} pixels high or wide",
        },
    )
