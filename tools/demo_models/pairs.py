"""Initial weights and inputs of the two models that read a pair of sentences."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import AutoTokenizer, BertForSequenceClassification, BertTokenizer

from stoker.demo.setup import MODELS
from tools.demo_models import common

ENCODER = MODELS / "tiny-encoder"
"""Encoder with word vectors that are already grouped by topic. Only the comparison remains to be
learnt.
"""

START = (
    "A BERT with two layers of 64 dimensions that starts from the weights and the vocabulary of "
    "the demo's `tiny-encoder`"
)
"""Beginning of the cards."""


class Pair(NamedTuple):
    """Two texts that the model reads together."""

    left: str
    right: str


def tokenizer() -> BertTokenizer:
    """Returns the encoder's tokenizer."""
    auto: Any = AutoTokenizer
    return auto.from_pretrained(ENCODER, local_files_only=True)


def model(**fields: Any) -> BertForSequenceClassification:
    """Returns the encoder with a new head. `fields` are fields of the configuration."""
    auto: Any = BertForSequenceClassification
    return auto.from_pretrained(ENCODER, local_files_only=True, **fields)


def inputs(tokenizer: BertTokenizer, pairs: Sequence[Pair]) -> common.Batch:
    """Returns `input_ids`, `token_type_ids` and `attention_mask`, each `[pairs, longest]`."""
    lefts = [pair.left for pair in pairs]
    rights = [pair.right for pair in pairs]
    encoded: Any = tokenizer(lefts, rights, padding=True, return_tensors="pt")
    return dict(encoded)


def logits(
    model: BertForSequenceClassification, tokenizer: BertTokenizer, pairs: Sequence[Pair]
) -> Tensor:
    """Returns the logits `[pairs, labels]`."""
    batches: list[Tensor] = []
    for start in range(0, len(pairs), 64):
        with torch.no_grad():
            batches.append(model(**inputs(tokenizer, pairs[start : start + 64])).logits)
    return torch.cat(batches)
