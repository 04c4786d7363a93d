"""Texts with tokens that the tokenizer knows and the embedding lacks."""

from pathlib import Path
from typing import Any

import pytest
import transformers
from tokenizers import processors

from stoker.models.stages.known_tokens import UnknownTokenError
from tests.support.local import Local, RefusedError
from tests.support.models import tiny_bert

library: Any = transformers

EXTRA = "<extra>"
PIPELINES = {
    "text-classification": "ForSequenceClassification",
    "feature-extraction": "Model",
    "token-classification": "ForTokenClassification",
    "question-answering": "ForQuestionAnswering",
    "fill-mask": "ForMaskedLM",
    "zero-shot-classification": "ForSequenceClassification",
}
BODIES: list[tuple[str, str, dict[str, Any], str]] = [
    ("text-classification", "", {"inputs": ["paris", f"paris {EXTRA}"]}, "inputs[1]"),
    ("reranker", "rerank", {"query": EXTRA, "documents": ["a"]}, "query"),
    ("reranker", "rerank", {"query": "a", "documents": ["b", EXTRA]}, "documents[1]"),
    ("feature-extraction", "", {"inputs": f"paris {EXTRA}"}, "inputs"),
    ("feature-extraction", "embeddings", {"input": ["a", EXTRA]}, "input[1]"),
    ("feature-extraction", "rerank", {"query": "a", "documents": ["b", EXTRA]}, "documents[1]"),
    ("token-classification", "", {"inputs": EXTRA}, "inputs"),
    ("question-answering", "", {"question": "a", "context": f"paris {EXTRA}"}, "context"),
    ("question-answering", "", {"question": EXTRA, "context": "paris"}, "question"),
    ("fill-mask", "", {"inputs": f"[MASK] {EXTRA}"}, "inputs"),
    ("zero-shot-classification", "", {"inputs": "a", "candidate_labels": ["b", EXTRA]}, ""),
]


def made(path: Path, head: str, **special: str) -> Path:
    """Saves a model with a tokenizer that has one more token than the embedding has rows."""
    folder = tiny_bert(path, head)
    tokenizer = library.AutoTokenizer.from_pretrained(folder)
    config = library.AutoConfig.from_pretrained(folder)
    filling = [f"<fill{number}>" for number in range(config.vocab_size - len(tokenizer))]
    tokenizer.add_tokens([*filling, EXTRA])
    assert tokenizer.convert_tokens_to_ids(EXTRA) == config.vocab_size
    for name, value in special.items():
        setattr(tokenizer, name, value)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Local]:
    root = tmp_path_factory.mktemp("known")
    loaded = {name: Local(name, made(root / name, head)) for name, head in PIPELINES.items()}
    ranking = made(root / "reranker", "ForSequenceClassification")
    config = library.AutoConfig.from_pretrained(ranking, num_labels=1)
    library.BertForSequenceClassification(config).save_pretrained(ranking)
    return loaded | {"reranker": Local("text-classification", ranking)}


@pytest.mark.parametrize(("pipeline", "task", "body", "field"), BODIES)
def test_a_text_with_one_is_refused_and_the_token_named(
    pipeline: str, task: str, body: dict[str, Any], field: str, models: dict[str, Local]
) -> None:
    with pytest.raises(RefusedError) as refused:
        models[pipeline].ask(body, task or None)
    failure = refused.value.failure
    assert failure.code == "invalid_request"
    assert f"'{EXTRA}' (token " in failure.message
    assert failure.param == field or not field


def test_padding_that_has_no_row_is_replaced(tmp_path: Path) -> None:
    usual = Local("text-classification", tiny_bert(tmp_path / "usual", "ForSequenceClassification"))
    folder = made(tmp_path / "padded", "ForSequenceClassification", pad_token=EXTRA)
    padded = Local("text-classification", folder)
    bodies = [{"inputs": "paris"}, {"inputs": "paris paris london is a the of"}]
    assert padded.ask_together(bodies) == usual.ask_together(bodies)


def test_a_model_that_cannot_read_what_is_around_every_text_is_not_loaded(tmp_path: Path) -> None:
    folder = made(tmp_path, "ForSequenceClassification", cls_token=EXTRA)
    tokenizer = library.AutoTokenizer.from_pretrained(folder)
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{EXTRA} $A", special_tokens=[(EXTRA, tokenizer.convert_tokens_to_ids(EXTRA))]
    )
    tokenizer.save_pretrained(folder)
    with pytest.raises(UnknownTokenError, match=EXTRA):
        Local("text-classification", folder)
