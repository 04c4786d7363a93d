"""The tests that say by a marker what they try, read from their files."""

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]


@functools.cache
def marked(marker: str, root: Path = ROOT) -> dict[int | str, list[str]]:
    """What tests are marked with, `pytest.mark.<marker>(what, …)` → those tests, as pytest names
    them.
    """
    found: dict[int | str, list[str]] = {}
    for path in sorted((root / "tests").rglob("test_*.py")):
        name = str(path.relative_to(root))
        for test, what in _tests(ast.parse(path.read_text()), name, f"pytest.mark.{marker}"):
            found.setdefault(what, []).append(test)
    return found


def shown(tests: list[str]) -> str:
    """Tests, for a table."""
    return ", ".join(f"`{test.removeprefix('tests/')}`" for test in tests)


def _tests(
    node: ast.Module | ast.ClassDef, name: str, marker: str
) -> Iterator[tuple[str, int | str]]:
    for child in node.body:
        if not isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        yield from ((f"{name}::{child.name}", what) for what in _given(child, marker))
        if isinstance(child, ast.ClassDef):
            yield from _tests(child, f"{name}::{child.name}", marker)


def _given(
    node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, marker: str
) -> list[int | str]:
    return [
        argument.value
        for one in node.decorator_list
        if isinstance(one, ast.Call) and ast.unparse(one.func) == marker
        for argument in one.args
        if isinstance(argument, ast.Constant) and isinstance(argument.value, int | str)
    ]
