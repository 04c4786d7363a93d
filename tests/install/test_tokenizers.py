"""Tokenizers that consist of a SentencePiece model only, in the users' environment."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from tests.install.conftest import RUNS
from tests.support import sentencepieces
from tests.support.compare import equal
from tests.support.media import image, image_media
from tests.support.sentencepieces import FAMILIES, TEXT
from tests.support.seq2seq import Direct

pytestmark = RUNS
PICTURE = image(0)
LABELS = ["the tower", "a river in london"]
TASKS = {
    "TokenClassification": ("token-classification", "/v1/classifications/token"),
    "ConditionalGeneration": ("translation", "/v1/translations"),
    "CausalLM": ("text-generation", "/v1/completions"),
    "Model": ("zero-shot-image-classification", "/v1/classifications/zero-shot/image"),
}
BODIES = {
    "token-classification": {"inputs": TEXT},
    "translation": {"inputs": TEXT, "max_new_tokens": 8},
    "text-generation": {"prompt": TEXT, "max_tokens": 8, "temperature": 0},
    "zero-shot-image-classification": {
        "image": image_media(PICTURE),
        "candidate_labels": LABELS,
        "hypothesis_template": "{}",
    },
}


def expected(pipeline: str, folder: Path) -> Any:
    """Returns the answer of transformers."""
    if pipeline == "translation":
        return [{"translation_text": Direct(folder)(TEXT, max_new_tokens=8)}]
    if pipeline == "text-generation":
        tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder)
        model: Any = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
        encoded = tokenizer(TEXT, return_tensors="pt")
        with torch.inference_mode():
            made = model.generate(**encoded, max_new_tokens=8, do_sample=False)
        return tokenizer.decode(made[0, encoded["input_ids"].shape[1] :], skip_special_tokens=True)
    pipe: Any = transformers.pipeline(pipeline, model=str(folder), device="cpu")  # type: ignore[call-overload]
    if pipeline == "token-classification":
        return pipe(TEXT)
    return pipe(PICTURE, candidate_labels=LABELS, hypothesis_template="{}")


@pytest.mark.parametrize("family", FAMILIES)
def test_reads_as_transformers(family: str, compared: Any, tmp_path: Path) -> None:
    pipeline, path = TASKS[FAMILIES[family].head]
    answer = compared(partial(sentencepieces.save, family), pipeline, path, BODIES[pipeline])
    if pipeline == "text-generation":
        answer = answer["choices"][0]["text"]
    equal(answer, expected(pipeline, tmp_path))
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert not (tmp_path / "tokenizer.json").exists()
    assert tokenizer.tokenize(TEXT) == sentencepieces.pieces(family, tmp_path, TEXT)
