"""Private words stay out of the docs, the console, the code, its messages and its log."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BANNED = re.compile(
    r"\b(whoever|anew|in vain|so many|nobody|somebody else|is told|are told|was told|were told"
    r"|those that|for ever|as it should|once more|it is tried again)\b",
    re.IGNORECASE,
)
ASIDE = re.compile(r"schema\.d|performance|tasks|soak-\d")
"""Excluded files: generated pages with sources elsewhere, and records of a server's log."""
TEXTS = (
    *("docs", "frontend/src", "frontend/tests", "deploy", "README.md", "CONTRIBUTING.md"),
    *("Containerfile", "Makefile", "compose.yaml"),
)
CODE = ("stoker", "tools", "bench")
SUFFIXES = {"", ".md", ".py", ".sh", ".tpl", ".ts", ".tsx", ".yaml"}
EXAMPLES = ("Nobody was hurt", "nobody was at the desk")
"""Parts of sentences that models read."""


def files(*names: str) -> Iterator[Path]:
    for name in names:
        path = ROOT / name
        paths = [path] if path.is_file() else filter(Path.is_file, path.rglob("*"))
        for file in paths:
            is_aside = ASIDE.fullmatch(file.stem) or file.parent.name == "performance"
            if file.suffix in SUFFIXES and not is_aside:
                yield file


def hits(text: str) -> list[str]:
    for example in EXAMPLES:
        text = text.replace(example, "")
    return [text[max(0, m.start() - 40) : m.end() + 40] for m in BANNED.finditer(text)]


@pytest.mark.parametrize(
    "path", sorted(files(*TEXTS, *CODE)), ids=lambda path: str(path.relative_to(ROOT))
)
def test_texts(path: Path) -> None:
    assert hits(path.read_text()) == []


def test_log_messages() -> None:
    messages = [
        message
        for file in (ROOT / "stoker").rglob("*.py")
        for message in logged(ast.parse(file.read_text()))
    ]
    assert len(messages) > 150
    assert [message for message in messages if hits(message)] == []


def logged(tree: ast.AST) -> Iterator[str]:
    """Yields the texts that a module logs."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and isinstance(node.func.value, ast.Name)
            and node.func.value.id == "log"
            and node.args
            and isinstance(node.args[0], ast.Constant)
            and isinstance(node.args[0].value, str)
        ):
            yield node.args[0].value
