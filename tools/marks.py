"""Finds tests by the marker that names their subject, from their source files."""

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]


@functools.cache
def marked(marker: str, root: Path = ROOT) -> dict[int | str, list[str]]:
    """Maps each argument of `pytest.mark.<marker>(…)` to the tests with this argument, in pytest's
    notation.
    """
    by_argument: dict[int | str, list[str]] = {}
    for path in sorted((root / "tests").rglob("test_*.py")):
        name = str(path.relative_to(root))
        for test, argument in _tests(ast.parse(path.read_text()), name, f"pytest.mark.{marker}"):
            by_argument.setdefault(argument, []).append(test)
    return by_argument


def shown(tests: list[str]) -> str:
    """Formats tests for a table."""
    return ", ".join(f"`{test.removeprefix('tests/')}`" for test in tests)


def _tests(
    node: ast.Module | ast.ClassDef, name: str, marker: str
) -> Iterator[tuple[str, int | str]]:
    for child in node.body:
        if not isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        yield from ((f"{name}::{child.name}", argument) for argument in _given(child, marker))
        if isinstance(child, ast.ClassDef):
            yield from _tests(child, f"{name}::{child.name}", marker)


def _given(
    node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, marker: str
) -> list[int | str]:
    return [
        argument.value
        for decorator in node.decorator_list
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == marker
        for argument in decorator.args
        if isinstance(argument, ast.Constant) and isinstance(argument.value, int | str)
    ]
