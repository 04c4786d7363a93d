"""The shipped text models answer held-out questions as well as their cards say."""

from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForQuestionAnswering,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
)

from stoker.demo.setup import MODELS as SHIPPED
from tools.demo_models import nli, reader, reranker, seq2seq, summarizer, translator


def loaded(name: str, auto: Any) -> tuple[Any, Any]:
    torch.manual_seed(0)
    folder = SHIPPED / name
    assert sum(file.stat().st_size for file in folder.rglob("*")) <= 1_000_000
    model = auto.from_pretrained(folder, local_files_only=True)
    return model.eval(), AutoTokenizer.from_pretrained(folder, local_files_only=True)


def test_reranker() -> None:
    model, tokenizer = loaded("tiny-reranker", AutoModelForSequenceClassification)
    assert reranker.first_places(model, tokenizer, reranker.held_out(100, seed=2)) >= 0.9


# The card promises only the topics' names. It says that other words are often misjudged.
@pytest.mark.parametrize(("names", "least"), [(True, 0.9), (False, 0.5)])
def test_nli(names: bool, least: float) -> None:
    model, tokenizer = loaded("tiny-nli", AutoModelForSequenceClassification)
    questions = nli.held_out(200, seed=2, names=names)
    assert nli.accuracy(model, tokenizer, questions) >= least


def test_qa() -> None:
    model, tokenizer = loaded("tiny-qa", AutoModelForQuestionAnswering)
    assert reader.exact_match(model, tokenizer, reader.held_out(200, seed=2)) >= 0.8


@pytest.mark.parametrize(
    ("name", "module"), [("tiny-translator", translator), ("tiny-summarizer", summarizer)]
)
def test_seq2seq(name: str, module: Any) -> None:
    model, tokenizer = loaded(name, AutoModelForSeq2SeqLM)
    assert seq2seq.exact_match(model, tokenizer, module.held_out(100, seed=2)) >= 0.9


@pytest.mark.parametrize("module", [nli, reader, reranker, summarizer, translator])
def test_held_out_draws_repeat(module: Any) -> None:
    assert module.held_out(20) == module.held_out(20)
    assert module.held_out(20) != module.held_out(20, seed=2)
