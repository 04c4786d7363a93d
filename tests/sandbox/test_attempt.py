"""Attempts in forked children: what they return, raise or do not survive."""

import os

import pytest

from tests.sandbox.support import Confinement, no_walls

pytestmark = no_walls


@pytest.mark.parametrize(
    ("attempt", "text", "has_returned"),
    [
        ("succeed", "", True),
        ("fail", "broken", True),
        ("crash", "the process ended with status -6", False),
        ("hang", "no answer within 1 s", False),
    ],
)
def test_outcomes(confinement: Confinement, attempt: str, text: str, has_returned: bool) -> None:
    outcome = confinement.ask(attempt, once=True, timeout_s=1 if attempt == "hang" else 20)
    assert (outcome["text"], outcome["has_returned"]) == (text, has_returned)


def test_an_exception_is_a_problem(confinement: Confinement) -> None:
    outcome = confinement.ask("read", "/nonexistent", once=True)
    assert outcome["text"].startswith("FileNotFoundError: ")
    assert not outcome["has_returned"]


def test_nothing_remains(confinement: Confinement) -> None:
    confinement.ask("succeed", once=True)
    assert os.listdir(confinement.own) == []  # noqa: PTH208 - a plain list is clearer
