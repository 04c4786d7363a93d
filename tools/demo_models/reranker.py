"""`tiny-reranker`: scores how well a document answers a query."""

from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from random import Random
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy
from transformers import BertForSequenceClassification, BertTokenizer

from tools.demo_models import common, encoder, pairs
from tools.demo_models.encoder_text import intents

PAIRS = 60_000
STEPS = 1_800
QUERIES = 16
DOCUMENTS = 4
"""Number of documents per query in training. The correct one comes first."""

_FORMS = [intent.forms[0] for intent in intents()]


class Query(NamedTuple):
    """A query, its documents, and the index of the correct one."""

    text: str
    documents: tuple[str, ...]
    right: int


def held_out(count: int, seed: int = 1, *, near: int = 0) -> list[Query]:
    """Returns queries with ten documents each. None of their sentences was trained on.

    `near` of the wrong documents ask the same about another thing. The others are about something
    else.
    """
    rng = Random(seed)  # noqa: S311 - draws sentences, no secrets
    paraphrases = encoder.Paraphrases(held_out=True)
    drawn = [paraphrases.draw(rng) for _ in range(4 * count)]
    by_intent = _grouped(drawn)
    queries: list[Query] = []
    for pair in drawn:
        alike = [each for each in by_intent[_intent(pair)] if each.meaning != pair.meaning]
        wrong = rng.sample(alike, min(near, len(alike)))
        if len({each.right for each in wrong}) < near:
            continue
        while len(wrong) < 9:
            other = rng.choice(drawn)
            if _intent(other) not in {_intent(each) for each in (pair, *wrong)}:
                wrong.append(other)
        documents = [pair.right, *(each.right for each in wrong)]
        rng.shuffle(documents)
        queries.append(Query(pair.left, tuple(documents), documents.index(pair.right)))
        if len(queries) == count:
            break
    return queries


def _intent(pair: encoder.Pair) -> str:
    return _without_slots(pair.meaning)


@cache
def _without_slots(meaning: str) -> str:
    return max(filter(meaning.startswith, _FORMS), key=len, default=meaning)


def _grouped(drawn: Sequence[encoder.Pair]) -> dict[str, list[encoder.Pair]]:
    groups: dict[str, list[encoder.Pair]] = {}
    for pair in drawn:
        groups.setdefault(_intent(pair), []).append(pair)
    return groups


def first_places(
    model: BertForSequenceClassification, tokenizer: BertTokenizer, queries: Sequence[Query]
) -> float:
    """Returns the share of queries for which the correct document has the highest score."""
    inputs = [pairs.Pair(query.text, document) for query in queries for document in query.documents]
    scores = pairs.logits(model, tokenizer, inputs).view(len(queries), -1)
    rights = torch.tensor([query.right for query in queries])
    return float((scores.argmax(1) == rights).double().mean())


def _batches(
    tokenizer: BertTokenizer, drawn: Sequence[encoder.Pair], rng: Random
) -> Iterator[common.Batch]:
    """Yields `QUERIES` x `DOCUMENTS` rows, with the documents of a query next to each other."""
    by_intent = _grouped(drawn)
    while True:
        rows: list[pairs.Pair] = []
        for pair in rng.sample(drawn, QUERIES):
            alike = by_intent[_intent(pair)]
            rows.append(pairs.Pair(pair.left, pair.right))
            for _ in range(DOCUMENTS - 1):
                wrong = rng.choice(alike if rng.random() < 0.35 else drawn)
                while wrong.meaning == pair.meaning:
                    wrong = rng.choice(drawn)
                rows.append(pairs.Pair(pair.left, wrong.right))
        yield pairs.inputs(tokenizer, rows)


def _loss(model: BertForSequenceClassification, batch: common.Batch) -> Tensor:
    """Returns a loss that ranks the correct document first and makes its own score high after a
    sigmoid.
    """
    scores = model(**batch).logits.view(QUERIES, DOCUMENTS)
    targets = torch.zeros_like(scores)
    targets[:, 0] = 1.0
    ranked = cross_entropy(scores, torch.zeros(QUERIES, dtype=torch.long))
    return ranked + binary_cross_entropy_with_logits(scores, targets)


def build(folder: Path) -> None:
    """Trains the cross-encoder, measures it and writes its folder."""
    rng = common.seed_everything()
    drawn = encoder.training_pairs(rng, PAIRS)
    tokenizer = pairs.tokenizer()
    model = pairs.model(num_labels=1, id2label={0: "relevance"}, label2id={"relevance": 0})
    common.fit(
        model,
        _batches(tokenizer, drawn, rng),
        lambda batch: _loss(model, batch),
        steps=STEPS,
        peak_rate=1e-3,
    )
    common.save(model, tokenizer, folder)
    common.write_card(folder, model, _card(model, tokenizer))


def _card(model: BertForSequenceClassification, tokenizer: BertTokenizer) -> common.Card:
    sets = {
        "right document first of ten": held_out(500),
        "right document first of ten, three of which ask the same about another thing": held_out(
            500, near=3
        ),
    }
    return common.Card(
        title="tiny-reranker: which document answers a query?",
        pipeline_tag="text-ranking",
        tags=("bert", "text-ranking", "reranker", "cross-encoder", "tiny"),
        summary=(
            f"{pairs.START}, reads a query and a document together, and gives one score: its "
            "sigmoid is near 1 where both ask for the same thing."
        ),
        data=(
            f"{PAIRS:,} pairs: two ways to say one of {len(intents())} things about everyday "
            "topics, and one pair in five of loose words of one topic. Each query was compared "
            f"with its own document and {DOCUMENTS - 1} wrong ones, a third of which ask the same "
            "about another place, time or thing. One sentence in six was held out."
        ),
        evaluation=[
            (measurement, first_places(model, tokenizer, queries), len(queries))
            for measurement, queries in sets.items()
        ],
        example=(
            "from transformers import pipeline\n\n"
            'rank = pipeline("text-classification", "tiny-reranker")\n'
            'rank({"text": "do i need an umbrella today?", "text_pair": "will it rain today?"})\n'
            "# relevance, near 1"
        ),
        limits=(
            "It knows everyday requests of one sentence and some two thousand words. The documents "
            "it was trained and measured on say the same as the query in other words; passages "
            "that answer a question of fact are beyond it."
        ),
        repeatable="The pairs came out the same in two processes.",
    )
