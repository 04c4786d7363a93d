"""Texts near a model's limit: rounding a batch's length up must not exceed its positions."""

from pathlib import Path

from tests.support.local import Local
from tests.support.models import tiny_bert


def test_round_length_stays_within_the_positions(tmp_path: Path) -> None:
    # 61 positions: the next round length would be 64.
    folder = tiny_bert(tmp_path / "bert", positions=61)
    local = Local("token-classification", folder)
    words = 58
    found = local.ask({"inputs": ["hot " * words, "team"]})
    assert [len(one) for one in found] == [words, 1]
    local.close()
