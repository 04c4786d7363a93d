"""Texts near a model's limit: rounding a batch's length up must not exceed its positions."""

from pathlib import Path

from tests.support.local import Local
from tests.support.models import tiny_bert


def test_round_length_stays_within_the_positions(tmp_path: Path) -> None:
    # With 61 positions, the next rounded length would be 64.
    folder = tiny_bert(tmp_path / "bert", positions=61)
    local = Local("token-classification", folder)
    words = 58
    answers = local.ask({"inputs": ["hot " * words, "team"]})
    assert [len(entities) for entities in answers] == [words, 1]
    local.close()
