"""Tokenizers that are parsed from memory are the same, and so are the errors."""

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from stoker.replica import tokenizer_parsing
from tests.llm.support import tokenizer as byte_level
from tests.support.language import tokenizer

KIND: Any = tokenizers.Tokenizer


@pytest.fixture
def streaming(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Returns the original method. The test runs with the other one."""
    original = KIND.from_file
    monkeypatch.setattr(KIND, "from_file", original)
    tokenizer_parsing.parse_from_memory()
    return original


def test_the_tokenizer_is_the_same(streaming: Any, tmp_path: Path):
    tokenizer().save_pretrained(tmp_path)
    path = str(tmp_path / "tokenizer.json")
    parsed = KIND.from_file(path)
    assert KIND.from_file is not streaming
    assert parsed.to_str() == streaming(path).to_str()
    assert parsed.encode("the tower").ids == streaming(path).encode("the tower").ids


def bpe(merges: list[tuple[str, str]]) -> Any:
    """Returns a tokenizer with these merges."""
    tokens = {part for first, second in merges for part in (first, second, first + second)}
    letters = {letter for token in tokens for letter in token}
    vocabulary = {token: number for number, token in enumerate(sorted(tokens | letters))}
    return KIND(tokenizers.models.BPE(vocabulary, merges))


AWKWARD = [("a", "b"), ('"', ","), ("\\", '"'), ('",', '"'), ("[", "]"), ("é", "Ġ"), ("ab", '",')]


@pytest.mark.parametrize(
    ("merges", "is_short"),
    [
        pytest.param(AWKWARD, True, id="quotes"),
        pytest.param([("a", "b")], True, id="one"),
        pytest.param([("a", "b"), ("a b", "c")], False, id="space"),
        pytest.param([("a", "b"), ("\x01", "b")], False, id="escape"),
        pytest.param([("#version", "b"), ("a", "b")], False, id="comment"),
        pytest.param([], False, id="none"),
    ],
)
def test_short_merges_are_the_same_merges(
    streaming: Any, tmp_path: Path, merges: list[tuple[str, str]], is_short: bool
):
    path = tmp_path / "tokenizer.json"
    bpe(merges).save(str(path))
    content = path.read_bytes()
    short = tokenizer_parsing.with_short_merges(content)
    assert (short != content) is is_short
    if is_short:
        expected = [f"{first} {second}" for first, second in merges]
        assert json.loads(short)["model"]["merges"] == expected
    parsed, known = KIND.from_file(str(path)), streaming(str(path))
    assert parsed.to_str() == known.to_str() == KIND.from_buffer(short).to_str()
    text = "".join(first + second for first, second in merges)
    assert parsed.encode(text).ids == known.encode(text).ids


def test_trained_merges_are_short(streaming: Any, tmp_path: Path):
    byte_level().save_pretrained(tmp_path)
    path = tmp_path / "tokenizer.json"
    short = tokenizer_parsing.with_short_merges(path.read_bytes())
    assert len(short) < path.stat().st_size
    assert KIND.from_buffer(short).to_str() == streaming(str(path)).to_str()


@pytest.mark.parametrize("row", [["ab"], ["a", "b", "c"], []])
def test_malformed_merges_stay_as_they_are(streaming: Any, tmp_path: Path, row: list[str]):
    path = tmp_path / "tokenizer.json"
    bpe([("a", "b"), ("ab", "c")]).save(str(path))
    document = json.loads(path.read_bytes())
    document["model"]["merges"][1] = row
    path.write_text(json.dumps(document, indent=2, ensure_ascii=False))
    with pytest.raises(Exception) as expected:
        streaming(str(path))
    with pytest.raises(Exception) as raised:
        KIND.from_file(str(path))
    assert str(raised.value) == str(expected.value)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b'{"model": {}}'])
def test_errors_are_those_of_the_library(streaming: Any, tmp_path: Path, content: bytes):
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    with pytest.raises(Exception) as expected:
        streaming(str(path))
    with pytest.raises(Exception) as raised:
        KIND.from_file(str(path))
    assert str(raised.value) == str(expected.value)
