"""`tiny-fill-mask`: fills in the missing word of simple facts and simple grammar."""

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import BertForMaskedLM, BertTokenizer

from tools.demo_models import common
from tools.demo_models.fill_mask_text import FAMILIES, PREFIXES, STATED, Fact, statements

PIECES = 400
FEWEST = 300
STEPS = 4_500
BATCH = 64

_IGNORED = -100
_WORD = re.compile(r"[a-z0-9]+")


class Split(NamedTuple):
    """Sentences for training and for testing. Each held-out fact is learnt from other sentences."""

    training: list[Fact]
    held_out: list[Fact]


def split(rng: Random) -> Split:
    """Holds out one sentence of each fact that has four or more wordings.

    Families with few facts are repeated. For example, a week has only seven days, but their order
    is hard to learn.
    """
    stated = {fact.text for fact in STATED}
    training: list[Fact] = []
    held_out: list[Fact] = []
    for family in FAMILIES:
        learnt: list[Fact] = []
        for facts in statements(family):
            usable = [fact for fact in facts if fact.text not in stated]
            if len(facts) >= 4:
                held_out.append(usable.pop(rng.randrange(len(usable))))
            learnt += usable
        training += learnt * max(1, round(FEWEST / len(learnt)))
    # Two families can contain the same sentence, such as `after one comes two`.
    tested = {fact.text for fact in held_out}
    return Split([fact for fact in training if fact.text not in tested], held_out)


def train_tokenizer(facts: Iterable[Fact]) -> BertTokenizer:
    """Returns a tokenizer with one token per word of the facts, so that `[MASK]` can stand for any
    of them.
    """
    texts = [*(filled(fact) for fact in facts), *PREFIXES]
    words = sorted({word for text in texts for word in _WORD.findall(text)})
    return common.train_tokenizer(texts, vocab_size=PIECES, lowercase=True, whole_words=words)


def filled(fact: Fact) -> str:
    """Returns the sentence with the correct word filled in."""
    return fact.text.replace("[MASK]", fact.word)


def accuracy(model: BertForMaskedLM, tokenizer: BertTokenizer, facts: Sequence[Fact]) -> float:
    """Returns the share of sentences for which the most likely word is correct."""
    return 1 - len(mistakes(model, tokenizer, facts)) / len(facts)


def mistakes(
    model: BertForMaskedLM, tokenizer: BertTokenizer, facts: Sequence[Fact]
) -> list[tuple[Fact, str]]:
    """Returns the sentences with a wrong answer, each with the most likely word."""
    wrong: list[tuple[Fact, str]] = []
    for start in range(0, len(facts), 64):
        part = facts[start : start + 64]
        batch = common.inputs(tokenizer([fact.text for fact in part])["input_ids"])
        with torch.no_grad():
            logits = model(**batch).logits
        best = logits[batch["input_ids"] == common.MASK].argmax(-1).tolist()
        words = tokenizer.convert_ids_to_tokens(best)
        wrong += [(fact, word) for fact, word in zip(part, words, strict=True) if word != fact.word]
    return wrong


def _batches(
    tokenizer: BertTokenizer, facts: Sequence[Fact], rng: Random
) -> Iterator[common.Batch]:
    """Yields batches. Most rows mask the fact's word. One in six masks a seventh of all words, as
    in BERT's training.
    """
    questions = _encoded(tokenizer, [fact.text for fact in facts])
    answers = _encoded(tokenizer, [filled(fact) for fact in facts])
    prefixes = _encoded(tokenizer, [*PREFIXES, ""])
    for batch in common.bucketed([len(row) for row in questions], BATCH, rng):
        rows: list[list[int]] = []
        labels: list[list[int]] = []
        for at in batch:
            row, target = questions[at], answers[at]
            if rng.random() < 1 / 6:
                row = [common.MASK if rng.random() < 1 / 7 else token for token in target]
            if rng.random() < 0.15:
                row, target = row[:-1], target[:-1]
            prefix = rng.choice(prefixes) if rng.random() < 0.2 else []
            rows.append([common.CLS, *prefix, *row, common.SEP])
            hidden = [
                token if token_id == common.MASK else _IGNORED
                for token_id, token in zip(row, target, strict=True)
            ]
            labels.append([_IGNORED] * (len(prefix) + 1) + hidden + [_IGNORED])
        yield common.inputs(rows) | {"labels": common.padded(labels, _IGNORED)}


def masked_loss(model: BertForMaskedLM, batch: common.Batch) -> Tensor:
    """Returns the loss of `BertForMaskedLM`, computed only at masked positions.

    The model's own `loss` computes all tokens, which would use most of the training time.
    """
    hidden = model.bert(batch["input_ids"], batch["attention_mask"]).last_hidden_state
    is_masked = batch["labels"] != _IGNORED
    return cross_entropy(model.cls(hidden[is_masked]), batch["labels"][is_masked])


def _encoded(tokenizer: BertTokenizer, texts: Sequence[str]) -> list[list[int]]:
    return tokenizer(list(texts), add_special_tokens=False)["input_ids"]


def build(folder: Path) -> None:
    """Trains the model, measures it and writes its folder."""
    rng = common.seed_everything()
    facts, held_out = split(rng)
    tokenizer = train_tokenizer(facts)
    model = BertForMaskedLM(common.bert_config(tokenizer))
    common.fit(
        model,
        _batches(tokenizer, facts, rng),
        lambda batch: masked_loss(model, batch),
        steps=STEPS,
        peak_rate=3e-3,
    )
    common.save(model, tokenizer, folder)
    common.write_card(folder, model, _card(model, tokenizer, held_out))


def _card(
    model: BertForMaskedLM, tokenizer: BertTokenizer, held_out: Sequence[Fact]
) -> common.Card:
    sets = {
        "top-1, the stated sentences": STATED,
        "top-1, one held-out sentence of each fact": held_out,
    }
    return common.Card(
        title="tiny-fill-mask: the missing word of a simple fact",
        pipeline_tag="fill-mask",
        tags=("bert", "fill-mask", "tiny"),
        summary=(
            "A BERT with two layers of 64 dimensions that fills `[MASK]` in uncased English "
            "sentences about capitals, languages, days, months, numbers, sums, opposites, "
            "animals, colours, trades, word forms and the like. Each word it knows is one "
            "token."
        ),
        data=(
            f"{len(FAMILIES)} families of facts, each said in several ways. One sentence of "
            "each fact that can be said in four ways or more was held out, and so were the "
            "stated sentences (`STATED` in `tools/demo_models/fill_mask_text.py`); the facts "
            "are learnt from the rest."
        ),
        evaluation=[
            (measurement, accuracy(model, tokenizer, facts), len(facts))
            for measurement, facts in sets.items()
        ],
        example=(
            "from transformers import pipeline\n\n"
            'fill = pipeline("fill-mask", "tiny-fill-mask")\n'
            'fill("The capital of France is [MASK].")[0]["token_str"]\n'
            "# paris"
        ),
        limits=(
            "It knows the facts it was taught and no others, and follows only frames like "
            "the ones it was taught them in. Asked about anything else, it answers with a "
            "word of the right kind at best."
        ),
    )
