"""The direct way to a tokenizer's library has the same outputs as transformers."""

import pickle
from typing import Any

import pytest
import torch
import transformers

from stoker.models.stages.direct_tokens import DirectTokenizer
from tools.stand_ins.word_pieces import word_pieces

TEXTS = ["the cat", "", "the [MASK] 漢字 é\x00 of", "one " * 700]
OPTIONS = {"return_special_tokens_mask": True, "return_offsets_mapping": True}


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return word_pieces(["the", "cat", "of", "one"], 512)


@pytest.mark.parametrize("options", [{}, OPTIONS])
def test_outputs_are_those_of_transformers(tokenizer: Any, options: dict[str, bool]) -> None:
    direct = DirectTokenizer.of(tokenizer, options)
    assert direct is not None
    for text in TEXTS:
        expected = tokenizer(text, return_tensors="pt", **options)
        # The library must not cut or pad as in the call before.
        tokenizer(text, truncation=True, max_length=3, padding="max_length")
        encoded = pickle.loads(pickle.dumps(direct))(text)
        assert list(encoded) == list(expected)
        for name, value in expected.items():
            assert encoded[name].dtype == value.dtype
            assert torch.equal(encoded[name], value)


def test_tokenizers_with_methods_of_their_own_need_transformers(tokenizer: Any) -> None:
    class Switching(transformers.TokenizersBackend):
        def _encode_plus(self, *args: Any, **options: Any) -> Any:
            return super()._encode_plus(*args, **options)

    switching = Switching(tokenizer_object=tokenizer.backend_tokenizer)
    assert DirectTokenizer.of(switching, {}) is None
    assert DirectTokenizer.of(tokenizer, {"return_length": True}) is None
