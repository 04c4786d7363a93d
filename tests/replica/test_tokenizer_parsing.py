"""Tokenizers that are parsed from memory are the same, and so are the errors."""

from pathlib import Path
from typing import Any

import pytest
import tokenizers

from stoker.replica import tokenizer_parsing
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


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b'{"model": {}}'])
def test_errors_are_those_of_the_library(streaming: Any, tmp_path: Path, content: bytes):
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    with pytest.raises(Exception) as expected:
        streaming(str(path))
    with pytest.raises(Exception) as raised:
        KIND.from_file(str(path))
    assert str(raised.value) == str(expected.value)
