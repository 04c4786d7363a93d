"""`tiny-sentiment`: distinguishes positive from negative opinions, including negation."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

import torch
from transformers import BertForSequenceClassification, BertTokenizer

from tools.demo_models import common
from tools.demo_models.sentiment_text import HAND_WRITTEN, NEGATIVE, POSITIVE, Review, Reviews

LABELS = {NEGATIVE: "negative", POSITIVE: "positive"}
REVIEWS = 60_000
VOCABULARY = 1_900
STEPS = 3_300
BATCH = 64


def training_reviews(rng: Random, count: int) -> list[Review]:
    """Returns training reviews."""
    reviews = Reviews(held_out=False)
    return [reviews.draw(rng) for _ in range(count)]


def held_out_reviews(rng: Random, count: int) -> list[Review]:
    """Returns reviews with pairs of frame and opinion words that were kept out of training."""
    reviews = Reviews(held_out=True)
    return [reviews.draw(rng) for _ in range(count)]


def hand_written() -> list[Review]:
    """Returns the reviews that were not made from frames."""
    return [Review(text, label) for label, texts in enumerate(HAND_WRITTEN) for text in texts]


def mistakes(
    model: BertForSequenceClassification, tokenizer: BertTokenizer, reviews: Sequence[Review]
) -> list[Review]:
    """Returns the reviews that the model labels wrongly."""
    wrong: list[Review] = []
    for start in range(0, len(reviews), 64):
        part = reviews[start : start + 64]
        batch = common.inputs(tokenizer([each.text for each in part])["input_ids"])
        with torch.no_grad():
            choices = model(**batch).logits.argmax(-1).tolist()
        wrong += [each for each, choice in zip(part, choices, strict=True) if choice != each.label]
    return wrong


def accuracy(
    model: BertForSequenceClassification, tokenizer: BertTokenizer, reviews: Sequence[Review]
) -> float:
    """Returns the share of reviews that are labelled correctly."""
    return 1 - len(mistakes(model, tokenizer, reviews)) / len(reviews)


def _batches(
    tokenizer: BertTokenizer, reviews: Sequence[Review], rng: Random
) -> Iterator[common.Batch]:
    rows: list[list[int]] = tokenizer([each.text for each in reviews])["input_ids"]
    for batch in common.bucketed([len(row) for row in rows], BATCH, rng):
        yield common.inputs([rows[at] for at in batch]) | {
            "labels": torch.tensor([reviews[at].label for at in batch])
        }


def build(folder: Path) -> None:
    """Trains the classifier, measures it and writes its folder."""
    rng = common.seed_everything()
    reviews = training_reviews(rng, REVIEWS)
    tokenizer = common.train_tokenizer(
        (each.text for each in reviews), vocab_size=VOCABULARY, lowercase=True
    )
    model = BertForSequenceClassification(
        common.bert_config(
            tokenizer,
            id2label=LABELS,
            label2id={label: at for at, label in LABELS.items()},
            problem_type="single_label_classification",
        )
    )
    common.fit(
        model,
        _batches(tokenizer, reviews, rng),
        lambda batch: model(**batch).loss,
        steps=STEPS,
        peak_rate=2e-3,
    )
    common.save(model, tokenizer, folder)
    common.write_card(folder, model, _card(model, tokenizer, rng))


def _card(
    model: BertForSequenceClassification, tokenizer: BertTokenizer, rng: Random
) -> common.Card:
    sets = {
        "accuracy, pairings of frame and words never seen": held_out_reviews(rng, 2000),
        "accuracy, reviews written by hand": hand_written(),
    }
    return common.Card(
        title="tiny-sentiment: is an opinion positive or negative?",
        pipeline_tag="text-classification",
        tags=("bert", "sentiment", "text-classification", "tiny"),
        summary=(
            "A BERT with two layers of 64 dimensions that labels short English reviews `negative` "
        ),
        data=(
            f"{REVIEWS:,} reviews of films, food, hotels, devices and service, put together "
            "from frames and words with a known leaning. One pairing of a frame with its "
            "leaning words in eight was held out."
        ),
        evaluation=[
            (measurement, accuracy(model, tokenizer, reviews), len(reviews))
            for measurement, reviews in sets.items()
        ],
        example=(
            "from transformers import pipeline\n\n"
            'judge = pipeline("text-classification", "tiny-sentiment")\n'
            'judge("The food was not good.")\n'
            "# negative"
        ),
        limits=(
            "There is no neutral label: a sentence without an opinion gets one anyway. Irony "
            "and opinions told only by events it was never shown are beyond it."
        ),
    )
