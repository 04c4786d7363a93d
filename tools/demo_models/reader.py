"""`tiny-qa`: finds the answer to a question about people in a short passage."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import torch
from transformers import BertForQuestionAnswering, BertTokenizer

from tools.demo_models import common
from tools.demo_models.data_file import DataFile
from tools.demo_models.grammar import expand
from tools.demo_models.names import CITIES, HELD_OUT_FIRST_NAMES, syllables

STEPS = 2_500
BATCH = 32
VOCABULARY = 700
_DATA = DataFile("reader")
NAMES = _DATA.entries("names")
ANSWERS = {"town": CITIES[:80], **_DATA.groups("answers")}
FACTS = {
    kind: (texts["statements"], texts["questions"])
    for kind, texts in _DATA.read("facts", dict[str, dict[str, tuple[str, ...]]]).items()
}


class Example(NamedTuple):
    """A question about a passage, the answer and the character at which it starts."""

    question: str
    passage: str
    answer: str
    start: int


class Passages:
    """Draws questions. Held-out questions have new names and new pairs of statement and
    question.
    """

    def __init__(self, *, held_out: bool) -> None:
        self._held_out = held_out

    def draw(self, rng: Random) -> Example:
        """Returns a question on one of two to four facts about two or three people."""
        while True:
            kind = rng.choice(tuple(FACTS))
            facts, questions = FACTS[kind]
            fact, question = rng.choice(facts), rng.choice(questions)
            if ((fact, question) == (facts[1], questions[0])) == self._held_out:
                break
        name, *other_names = self._names(rng)
        answer = rng.choice(ANSWERS[kind])
        statements = [(name, kind, expand(fact, rng, {"name": (name,), kind: (answer,)}))]
        for _ in range(rng.choice((1, 2, 3))):
            about, other_kind = (
                rng.choice((name, *other_names, *other_names)),
                rng.choice(tuple(FACTS)),
            )
            if (about, other_kind) not in {each[:2] for each in statements}:
                slots = {"name": (about,), other_kind: ANSWERS[other_kind]}
                statements.append(
                    (about, other_kind, expand(rng.choice(FACTS[other_kind][0]), rng, slots))
                )
        rng.shuffle(statements)
        sentences = [sentence for *_, sentence in statements]
        at = [each[:2] for each in statements].index((name, kind))
        start = len(" ".join([*sentences[:at], ""])) + sentences[at].rindex(answer)
        return Example(question.format(name=name), " ".join(sentences), answer, start)

    def _names(self, rng: Random) -> Sequence[str]:
        """Returns two or three names. In training, half of them are invented, so that any name may
        occur.
        """
        if self._held_out:
            return rng.sample(HELD_OUT_FIRST_NAMES, rng.choice((2, 3)))
        names: list[str] = []
        while len(names) < 3:
            name = rng.choice(NAMES) if rng.random() < 0.5 else syllables(rng, 2).capitalize()
            if name not in (*names, *HELD_OUT_FIRST_NAMES):
                names.append(name)
        return names[: rng.choice((2, 3))]


def held_out(count: int, seed: int = 1) -> list[Example]:
    """Returns questions with names and with pairs of statement and question that were never trained
    on.
    """
    rng, passages = Random(seed), Passages(held_out=True)  # noqa: S311 - draws sentences, no secrets
    return [passages.draw(rng) for _ in range(count)]


def exact_match(model: Any, tokenizer: BertTokenizer, examples: Sequence[Example]) -> float:
    """Returns the share of questions for which the best span equals the answer exactly."""
    right = 0
    for start in range(0, len(examples), 100):
        part = examples[start : start + 100]
        batch, encoded = _encoded(tokenizer, part)
        with torch.no_grad():
            output = model(**batch)
        outside = batch["token_type_ids"] * batch["attention_mask"] == 0
        scores = output.start_logits.masked_fill(outside, -1e4)[:, :, None]
        scores = scores + output.end_logits.masked_fill(outside, -1e4)[:, None, :]
        spans = torch.ones_like(scores[0]).triu().tril(15).bool()
        best = scores.masked_fill(~spans, -1e9).flatten(1)
        for row, (example, choice) in enumerate(zip(part, best.argmax(1).tolist(), strict=True)):
            offsets = encoded["offset_mapping"][row].tolist()
            first, last = divmod(choice, len(offsets))
            right += example.passage[offsets[first][0] : offsets[last][1]] == example.answer
    return right / len(examples)


def _encoded(tokenizer: BertTokenizer, examples: Sequence[Example]) -> tuple[common.Batch, Any]:
    """Returns the model's inputs, each `[examples, longest]`, and the tokenizer's full output."""
    encoded: Any = tokenizer(
        [each.question for each in examples],
        [each.passage for each in examples],
        padding=True,
        return_offsets_mapping=True,
        return_tensors="pt",
    )
    return {name: encoded[name] for name in tokenizer.model_input_names}, encoded


def _batches(tokenizer: BertTokenizer, rng: Random) -> Iterator[common.Batch]:
    passages = Passages(held_out=False)
    while True:
        examples = [passages.draw(rng) for _ in range(BATCH)]
        batch, encoded = _encoded(tokenizer, examples)
        ends = [(each.start, each.start + len(each.answer) - 1) for each in examples]
        for name, side in (("start_positions", 0), ("end_positions", 1)):
            batch[name] = torch.tensor(
                [encoded.char_to_token(row, at[side], 1) for row, at in enumerate(ends)]
            )
        yield batch


def _model(tokenizer: BertTokenizer) -> BertForQuestionAnswering:
    """Returns a model with four layers: to find the name, its sentence, the kind of fact and its
    words.
    """
    config = common.bert_config(tokenizer)
    config.num_hidden_layers = 4
    return BertForQuestionAnswering(config)


def build(folder: Path) -> None:
    """Trains the reader, measures it and writes its folder."""
    rng = common.seed_everything()
    passages = Passages(held_out=False)
    examples = [passages.draw(rng) for _ in range(10_000)]
    tokenizer = common.train_tokenizer(
        (text for each in examples for text in (each.question, each.passage)),
        vocab_size=VOCABULARY,
        lowercase=True,
    )
    model = _model(tokenizer)
    common.fit(
        model,
        _batches(tokenizer, rng),
        lambda batch: model(**batch).loss,
        steps=STEPS,
        peak_rate=1.5e-3,
    )
    common.save(model, tokenizer, folder)
    examples = held_out(1000)
    score = exact_match(model, tokenizer, examples)
    common.write_card(folder, model, _card(score, len(examples)))


def _card(score: float, count: int) -> common.Card:
    return common.Card(
        title="tiny-qa: where does Anna work?",
        pipeline_tag="question-answering",
        tags=("bert", "question-answering", "extractive-qa", "tiny"),
        summary=(
            "A BERT with four layers of 64 dimensions that marks the answer to a question about a "
            "person in a passage that tells where people work and live, what they own, eat and "
            "play."
        ),
        data=(
            f"{STEPS * BATCH:,} passages of two to four sentences about two or three people, half "
            "of whose names were invented, with a question. The names of the measurement and, of "
            "each kind of fact, one pairing of a statement with a question were held out."
        ),
        evaluation=[("exact match, names and pairings of frames never seen", score, count)],
        example=(
            "from transformers import AutoModelForQuestionAnswering\n\n"
            'AutoModelForQuestionAnswering.from_pretrained("tiny-qa")\n'
            '# "Where does Anna work?" on "Anna works at the bakery. Ben lives in Rome.": bakery'
        ),
        limits=(
            "It knows five kinds of facts, each told in three ways, and always answers, also where "
            "the passage does not tell. It joins no two facts."
        ),
        repeatable="The passages and the vocabulary came out the same in two processes.",
    )
