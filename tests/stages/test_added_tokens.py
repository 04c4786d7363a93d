"""Tokenizers load the same if transformers receives the added tokens instead of reading them."""

import json
from pathlib import Path
from typing import Any

import pytest
import transformers

from stoker.models.stages import added_tokens
from tests.support.language import tokenizer


@pytest.fixture(params=["bert", "roberta"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    made = tokenizer(request.param)
    made.add_tokens(["<think>", "metres-high"])
    made.add_special_tokens({"extra_special_tokens": ["<|im_end|>"]})
    made.save_pretrained(tmp_path)
    return tmp_path


def loaded(folder: Path, **arguments: Any) -> Any:
    library: Any = transformers
    return library.AutoTokenizer.from_pretrained(str(folder), **arguments)


def values(tokenizer: Any) -> dict[str, str]:
    """Returns a tokenizer's arguments. Tokens are only equal to themselves."""
    return {name: repr(value) for name, value in tokenizer.init_kwargs.items()}


def test_the_tokenizer_is_the_same(folder: Path):
    arguments = added_tokens.arguments(folder)
    assert "<|im_end|>" in map(str, arguments["added_tokens_decoder"].values())
    plain, ours = loaded(folder), loaded(folder, **arguments)
    assert ours.backend_tokenizer.to_str() == plain.backend_tokenizer.to_str()
    assert ours.special_tokens_map == plain.special_tokens_map
    assert repr(ours.added_tokens_decoder) == repr(plain.added_tokens_decoder)
    assert values(ours) == values(plain)
    text = "the tower <think> was metres-high<|im_end|> in paris"
    assert ours(text)["input_ids"] == plain(text)["input_ids"]


@pytest.mark.parametrize("name", ["special_tokens_map.json", "added_tokens.json"])
def test_files_of_older_versions_are_left_to_transformers(folder: Path, name: str):
    (folder / name).write_text("{}")
    assert added_tokens.arguments(folder) == {}


def test_declared_tokens_are_left_to_transformers(folder: Path):
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_bytes()), "added_tokens_decoder": {}}))
    assert added_tokens.arguments(folder) == {}


@pytest.mark.parametrize("content", ["{", "[]", '{"added_tokens": [{"content": "a"}]}'])
def test_unreadable_files_are_left_to_transformers(folder: Path, content: str):
    (folder / "tokenizer.json").write_text(content)
    assert added_tokens.arguments(folder) == {}
