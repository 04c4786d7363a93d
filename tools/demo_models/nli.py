"""`tiny-nli`: predicts whether "This example is about sports." follows from a text."""

import zlib
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from random import Random
from typing import NamedTuple, cast

import torch
from transformers import BertForSequenceClassification, BertTokenizer

from tools.demo_models import common, encoder, pairs
from tools.demo_models.data_file import DataFile
from tools.demo_models.encoder_text import TOPIC_WORDS
from tools.demo_models.grammar import expand

LABELS = {0: "entailment", 1: "neutral", 2: "contradiction"}
ENTAILMENT, NEUTRAL, CONTRADICTION = LABELS
EXAMPLES = 60_000
STEPS = 1_800
BATCH = 64
TEMPLATE = "This example is about {}."

_DATA = DataFile("nli")
_TEMPLATES = _DATA.entries("templates")
_NO_TOPIC = _DATA.entries("no_topic")
_ALIKE = _DATA.read("alike", tuple[tuple[str, ...], ...])
"""Groups of similar topics. A word of one does not contradict a text of another."""


class Example(NamedTuple):
    """A premise, a hypothesis and their label."""

    pair: pairs.Pair
    label: int


class Question(NamedTuple):
    """A text and candidate labels, exactly one of them correct."""

    text: str
    candidates: tuple[str, ...]
    right: str


@cache
def topic_words(*, held_out: bool) -> dict[str, tuple[str, ...]]:
    """Maps each topic to words that belong to it alone. One word in five is held out, but never the
    topic's name.
    """
    every = [word for words in TOPIC_WORDS.values() for word in words]
    return {
        topic: tuple(
            word
            for word in dict.fromkeys((topic, *words))
            if (every.count(word) == 1 or word == topic)
            and (word != topic and zlib.crc32(word.encode()) % 5 == 0) == held_out
        )
        for topic, words in TOPIC_WORDS.items()
    }


def _far(topic: str, rng: Random) -> str:
    """Returns another, unrelated topic."""
    near = {topic, *(other for group in _ALIKE if topic in group for other in group)}
    return rng.choice([other for other in sorted(TOPIC_WORDS) if other not in near])


def training_examples(rng: Random, count: int) -> list[Example]:
    """Returns training pairs. Entailment and contradiction are equally frequent, and one pair in
    eight is neutral.
    """
    paraphrases = encoder.Paraphrases(held_out=False)
    labels = topic_words(held_out=False)
    examples: list[Example] = []
    for _ in range(count):
        topic = rng.choice(sorted(TOPIC_WORDS))
        text = paraphrases.about(topic, rng)
        label = rng.choice((ENTAILMENT, CONTRADICTION)) if rng.random() > 1 / 8 else NEUTRAL
        if label == NEUTRAL:
            text = expand(rng.choice(_NO_TOPIC), rng, {})
        named = _far(topic, rng) if label == CONTRADICTION else topic
        word = named if rng.random() < 0.3 else rng.choice(labels[named])
        hypothesis = rng.choice(_TEMPLATES).format(word)
        examples.append(Example(pairs.Pair(text, hypothesis), label))
    return examples


def held_out(count: int, seed: int = 1, *, names: bool = False) -> list[Question]:
    """Returns sentences never trained on, each with five candidate labels from its own and
    unrelated topics.

    The labels are words that neither the hypotheses of the training nor the text contain. With
    `names`, they are the topics' names.
    """
    rng = Random(seed)  # noqa: S311 - draws sentences, no secrets
    paraphrases = encoder.Paraphrases(held_out=True)
    words = topic_words(held_out=True)
    topics = [topic for topic in sorted(TOPIC_WORDS) if words[topic]]
    questions: list[Question] = []
    while len(questions) < count:
        topic = rng.choice(topics)
        text = paraphrases.about(topic, rng)
        chosen = [topic]
        while len(chosen) < 5:
            other = _far(topic, rng)
            if other not in chosen and words[other]:
                chosen.append(other)
        candidates = [each if names else rng.choice(words[each]) for each in chosen]
        right = candidates[0]
        if right in text:
            continue
        rng.shuffle(candidates)
        questions.append(Question(text, tuple(candidates), right))
    return questions


def accuracy(
    model: BertForSequenceClassification, tokenizer: BertTokenizer, questions: Sequence[Question]
) -> float:
    """Returns the share of texts for which the correct label has the highest entailment logit."""
    inputs = [
        pairs.Pair(question.text, TEMPLATE.format(candidate))
        for question in questions
        for candidate in question.candidates
    ]
    scores = pairs.logits(model, tokenizer, inputs)[:, ENTAILMENT].view(len(questions), -1)
    choices = cast("list[int]", scores.argmax(1).tolist())  # pyright: ignore[reportUnknownMemberType]
    right = [
        question.candidates[choice] == question.right
        for question, choice in zip(questions, choices, strict=True)
    ]
    return sum(right) / len(right)


def _batches(
    tokenizer: BertTokenizer, examples: Sequence[Example], rng: Random
) -> Iterator[common.Batch]:
    while True:
        part = rng.sample(examples, BATCH)
        labels = torch.tensor([example.label for example in part])
        yield pairs.inputs(tokenizer, [each.pair for each in part]) | {"labels": labels}


def build(folder: Path) -> None:
    """Trains the classifier, measures it and writes its folder."""
    rng = common.seed_everything()
    examples = training_examples(rng, EXAMPLES)
    tokenizer = pairs.tokenizer()
    model = pairs.model(
        num_labels=3,
        id2label=LABELS,
        label2id={label: at for at, label in LABELS.items()},
        problem_type="single_label_classification",
    )
    common.fit(
        model,
        _batches(tokenizer, examples, rng),
        lambda batch: model(**batch).loss,
        steps=STEPS,
        peak_rate=1e-3,
    )
    common.save(model, tokenizer, folder)
    common.write_card(folder, model, _card(model, tokenizer))


def _card(model: BertForSequenceClassification, tokenizer: BertTokenizer) -> common.Card:
    sets = {
        "right label of five, labels are names of topics": held_out(1000, names=True),
        "right label of five, labels never seen in a hypothesis": held_out(1000),
    }
    return common.Card(
        title="tiny-nli: does a text speak of this topic?",
        pipeline_tag="zero-shot-classification",
        tags=("bert", "zero-shot-classification", "natural-language-inference", "tiny"),
        summary=(
            f"{pairs.START} and tells whether a sentence such as `This example is about sports.` "
            "follows from a text (`entailment`), is at odds with it (`contradiction`) or cannot "
            "be told from it (`neutral`)."
        ),
        data=(
            f"{EXAMPLES:,} pairs of a sentence about one of {len(TOPIC_WORDS)} everyday topics, or "
            "about none, and a hypothesis that names a topic or a word of one. One sentence in "
            "six and one label word in five were held out of the training; the encoder that it "
            "starts from had seen those words, though never as labels."
        ),
        evaluation=[
            (measurement, accuracy(model, tokenizer, questions), len(questions))
            for measurement, questions in sets.items()
        ],
        example=(
            "from transformers import pipeline\n\n"
            'classify = pipeline("zero-shot-classification", "tiny-nli")\n'
            'classify("They scored a goal in the match.", ["sports", "music", "banking"])\n'
            "# sports"
        ),
        limits=(
            "It works for a closed set of labels, the names of its topics: "
            f"{', '.join(TOPIC_WORDS)}. A word that it never met as a label is often misjudged, "
            "as the second figure shows, and topics close to each other (phones and computers) "
            "are not told apart well. It knows no inference but this: it cannot say whether one "
            "event follows from another."
        ),
        repeatable="The pairs came out the same in two processes.",
    )
