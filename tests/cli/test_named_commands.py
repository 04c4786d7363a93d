"""Commands that texts name exist, with their options: in pages, messages, docstrings, the console.

Blocks of pages run in other tests: see tests/support/doc_runs.py.
"""

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.commands import options
from tests.support.doc_blocks import ROOT, pages
from tools.cli_reference import commands, root, words

_FENCED = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"(?<!`)`([^`]+)`(?!`)")
_QUOTED = re.compile(r"""['`]((?:stoker|make) [a-z][^'`"]*)['`]""")
_SHOWN = re.compile(r"<code>([^<]+)</code>")
_TARGET = re.compile(r"^([\w-]+(?: [\w-]+)*):(?!=)", re.MULTILINE)
_PLACEHOLDER = re.compile(r"'(?:[a-z]+ )*[A-Z]+'")
"""A command whose last word is a placeholder, such as `COMMAND`."""
_OPTION = re.compile(r"--[a-z][\w-]*")


def spans(text: str) -> Iterator[str]:
    """Yields the code spans of a Markdown text, without its blocks."""
    for span in _SPAN.findall(_FENCED.sub("", text)):
        yield " ".join(span.split())


def strings(path: Path) -> Iterator[str]:
    """Yields the strings of a Python file. `X` takes the place of inserted values."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.JoinedStr):
            parts = (part.value if isinstance(part, ast.Constant) else "X" for part in node.values)
            yield "".join(map(str, parts))


def named() -> Iterator[tuple[str, str]]:
    """Yields places and commands."""
    for page in pages():
        for span in spans((ROOT / page).read_text()):
            yield page, span
    for path in (ROOT / "stoker").rglob("*.py"):
        if re.search(r"['`](stoker|make) ", path.read_text()):
            for text in strings(path):
                for call in _QUOTED.findall(text):
                    yield str(path.relative_to(ROOT)), " ".join(call.split())
    for path in (ROOT / "frontend" / "src").rglob("*.ts*"):
        for call in _SHOWN.findall(path.read_text()):
            yield str(path.relative_to(ROOT)), call


NAMED = sorted({*named()})


def test_stoker() -> None:
    wrong: list[str] = []
    calls = [(place, call) for place, call in NAMED if call.startswith("stoker ")]
    assert len(calls) > 200
    for place, call in calls:
        # A span may continue with a comment, or with another program.
        alone = re.split(r"\s[|<>]|;", call)[0]
        try:
            path, _ = words(alone, root())
        except LookupError as error:
            if not _PLACEHOLDER.search(str(error)):
                wrong.append(f"{place}: {error}")
            continue
        given = _OPTION.findall(alone.partition(" -- ")[0])
        unknown = [name for name in given if name not in options(path)]
        wrong += [f"{place}: {call}: no option {name}" for name in unknown]
    assert wrong == []


def test_make() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = {name for line in _TARGET.findall(makefile) for name in line.split()}
    calls = [(place, shlex.split(call)) for place, call in NAMED if call.startswith("make ")]
    assert len(calls) > 20
    wrong: list[str] = []
    for place, (_, target, *variables) in calls:
        names = [variable.partition("=")[0] for variable in variables]
        unknown = [name for name in names if f"{name} ?=" not in makefile]
        unknown = [name for name in unknown if f"({name})" not in makefile]
        if target not in targets or unknown:
            wrong.append(f"{place}: make {target} {unknown}")
    assert wrong == []


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "moving").glob("*.md")), ids=str)
def test_options_in_place_of_those_of_other_servers(page: Path) -> None:
    """The right column names options of `stoker`."""
    known = {name for path, _ in commands(root()) for name in options(path)}
    cells = re.findall(r"^\|.*\|([^|]*)\|$", page.read_text(), re.MULTILINE)
    found = [span.split()[0] for cell in cells for span in spans(cell) if span.startswith("--")]
    assert [name for name in found if name not in known] == []
