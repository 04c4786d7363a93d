"""What the two models that read a pair of sentences share: their start and their input."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import AutoTokenizer, BertForSequenceClassification, BertTokenizer

from stoker.demo.setup import MODELS
from tools.demo_models import common

ENCODER = MODELS / "tiny-encoder"
"""Its words already lie by topic, so what is left to learn is to compare."""

START = (
    "A BERT with two layers of 64 dimensions that starts from the weights and the vocabulary of "
    "the demo's `tiny-encoder`"
)
"""How the cards begin."""


class Pair(NamedTuple):
    """Two texts that the model reads together."""

    left: str
    right: str


def tokenizer() -> BertTokenizer:
    """The encoder's tokenizer."""
    auto: Any = AutoTokenizer
    return auto.from_pretrained(ENCODER, local_files_only=True)


def model(**fields: Any) -> BertForSequenceClassification:
    """The encoder with a new head; `fields` are those of the configuration."""
    auto: Any = BertForSequenceClassification
    return auto.from_pretrained(ENCODER, local_files_only=True, **fields)


def inputs(tokenizer: BertTokenizer, pairs: Sequence[Pair]) -> common.Batch:
    """`input_ids`, `token_type_ids` and `attention_mask`, each `[pairs, longest]`."""
    lefts = [pair.left for pair in pairs]
    rights = [pair.right for pair in pairs]
    encoded: Any = tokenizer(lefts, rights, padding=True, return_tensors="pt")
    return dict(encoded)


def logits(
    model: BertForSequenceClassification, tokenizer: BertTokenizer, pairs: Sequence[Pair]
) -> Tensor:
    """`[pairs, labels]`."""
    found: list[Tensor] = []
    for start in range(0, len(pairs), 64):
        with torch.no_grad():
            found.append(model(**inputs(tokenizer, pairs[start : start + 64])).logits)
    return torch.cat(found)
