"""docs/security_cases.md lists the tests of each case, and every case is tested."""

import ast
from pathlib import Path

import pytest

from tools.mutations import MUTATIONS, ROOT, Mutation
from tools.security_cases import CASES, PAGE, marks, page


def test_every_case_is_tried_and_there_is_no_other():
    assert set(marks()) == set(CASES) == set(range(1, len(CASES) + 1))


def test_page_is_what_the_marks_say():
    assert PAGE.read_text() == page(), "write it anew: python -m tools.security_cases"


def test_every_case_has_a_guard_that_can_be_broken():
    assert {mutation.case for mutation in MUTATIONS} == set(CASES)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda one: f"{one.case}")
def test_breaks_fit(mutation: Mutation):
    """The code that a mutation breaks still exists, and the tests that must detect it belong to its
    case.
    """
    assert (ROOT / mutation.file).read_text().count(mutation.old) == 1
    of_case = marks()[mutation.case]
    for test in mutation.tests:
        assert any(
            marked_test.startswith(test) or test.startswith(f"{marked_test}::")
            for marked_test in of_case
        ), test


@pytest.mark.case(22)
def test_no_assert_is_a_check():
    """CVE-2026-41523: `python -O` removes assert statements."""
    asserts = [
        f"{path}:{node.lineno}"
        for path in (Path(__file__).parents[1] / "stoker").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Assert)
    ]
    assert not asserts
