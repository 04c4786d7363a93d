"""The first text tasks on several model families, against transformers itself."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from tests.support.compare import equal
from tests.support.local import Local
from tests.support.models import word_tokenizer

TEXTS = [
    "my name is Clara and I live in Berkeley California",
    "hot",
    "Clara keeps the model, and the team is hot in California. " * 5,
]
FAMILIES = {"bert": "Bert", "roberta": "Roberta", "distilbert": "DistilBert", "electra": "Electra"}
HEADS = {
    "token-classification": "ForTokenClassification",
    "text-classification": "ForSequenceClassification",
    "fill-mask": "ForMaskedLM",
    "feature-extraction": "Model",
}


def save(family: str, pipeline: str, folder: Path) -> None:
    tokenizer = word_tokenizer()
    sizes = {
        "vocab_size": len(tokenizer),
        "max_position_embeddings": 128 + (family == "roberta"),
        "pad_token_id": tokenizer.pad_token_id,
        "num_labels": 3,
    }
    if family == "distilbert":
        sizes |= {"dim": 32, "hidden_dim": 64, "n_layers": 2, "n_heads": 2}
    else:
        sizes |= {"hidden_size": 32, "intermediate_size": 64}
        sizes |= {"num_hidden_layers": 2, "num_attention_heads": 2}
    config = getattr(transformers, f"{FAMILIES[family]}Config")(**sizes)
    transformers.set_seed(0)
    getattr(transformers, f"{FAMILIES[family]}{HEADS[pipeline]}")(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def reference(pipeline: str, folder: Path, texts: list[str]) -> Any:
    pipe = transformers.pipeline(pipeline, model=str(folder), device="cpu")  # type: ignore[call-overload]
    if pipeline == "text-classification":
        return [pipe(text, top_k=None) for text in texts]
    if pipeline == "feature-extraction":
        # Without a pooling configuration, the vector is the mean over the tokens, special ones
        # included.
        return [torch.tensor(pipe(text))[0].mean(0).tolist() for text in texts]
    return [pipe(text) for text in texts]


@pytest.mark.parametrize("pipeline", HEADS)
@pytest.mark.parametrize("family", FAMILIES)
class TestFamilies:
    @pytest.fixture
    def folder(self, tmp_path: Path, family: str, pipeline: str) -> Path:
        save(family, pipeline, tmp_path / "model")
        return tmp_path / "model"

    @pytest.fixture
    def local(self, folder: Path, pipeline: str) -> Iterator[Local]:
        local = Local(pipeline, folder)
        yield local
        local.close()

    def test_alone_and_in_a_mixed_batch(self, local: Local, folder: Path, pipeline: str) -> None:
        texts = [f"{text} [MASK]" for text in TEXTS] if pipeline == "fill-mask" else TEXTS
        expected = reference(pipeline, folder, texts)
        for text, theirs in zip(texts, expected, strict=True):
            equal(local.ask({"inputs": text}), theirs)
        local.batches.clear()
        for answer in local.ask_together([{"inputs": texts}] * 3):
            equal(answer, expected)
        assert max(local.batches) > 1
