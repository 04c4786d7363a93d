"""Compares answers with a reference."""

from typing import Any

import pytest


def equal(ours: Any, theirs: Any, where: str = "") -> None:
    """Asserts that structure and values are equal. Numbers may differ by 1e-4."""
    if isinstance(theirs, dict):
        assert set(ours) == set(theirs), where
        for name in theirs:
            equal(ours[name], theirs[name], f"{where}.{name}")
    elif isinstance(theirs, list):
        assert len(ours) == len(theirs), where
        for index, value in enumerate(theirs):
            equal(ours[index], value, f"{where}[{index}]")
    elif isinstance(theirs, str) or theirs is None:
        assert ours == theirs, where
    else:
        assert ours == pytest.approx(float(theirs), abs=1e-4), where
