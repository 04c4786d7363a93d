"""A model of lower precision agrees with the original by the direction of its outputs and by its
top labels.
"""

import math

import pytest
import torch

from stoker.models.engines.agreement import Agreement


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def agreement(name: str, ours: torch.Tensor, theirs: torch.Tensor) -> Agreement:
    result = Agreement()
    result.add({name: ours}, {name: theirs})
    return result


def test_equal_answers() -> None:
    value = torch.randn(3, 128)
    result = agreement("embedding", value, value.clone())
    assert (result.difference, result.labels) == (0, 1)
    assert result.cosine == pytest.approx(1)


def test_the_worst_row_counts() -> None:
    theirs = torch.randn(3, 128)
    ours = theirs.clone()
    # Rotates the row by half a right angle.
    across = torch.randn(128)
    across -= (across @ theirs[1]) / (theirs[1] @ theirs[1]) * theirs[1]
    ours[1] += across / across.norm() * theirs[1].norm()
    assert agreement("embedding", ours, theirs).cosine == pytest.approx(math.sqrt(0.5), abs=1e-6)


def test_small_answers_are_taken_together() -> None:
    """Outputs with a single value are compared together, because the sign of a score near zero is
    meaningless.
    """
    result = Agreement()
    for ours, theirs in ((5.0, 5.1), (-0.01, 0.01), (-3.0, -3.1)):
        result.add({"logits": torch.tensor([[ours]])}, {"logits": torch.tensor([[theirs]])})
    assert result.cosine > 0.999
    result.add({"logits": torch.tensor([[-9.0]])}, {"logits": torch.tensor([[9.0]])})
    assert result.cosine < 0


def test_labels_that_lead_clearly_have_to_stay() -> None:
    theirs = torch.tensor([[4.0, 1.0], [2.0, 1.9], [0.0, 3.0], [-1.0, 1.0]])
    ours = torch.tensor([[4.0, 1.0], [1.9, 2.0], [0.0, 3.0], [1.0, -1.0]])
    # The second row was nearly a tie, the last one was not.
    assert agreement("logits", ours, theirs).labels == pytest.approx(2 / 3)
    assert agreement("embedding", ours, theirs).labels == 1


def test_what_all_labels_have_more_of_hides_nothing() -> None:
    theirs = torch.tensor([[1000.5, 1000.0], [1000.0, 1000.5]])
    result = agreement("logits", theirs.flip(1), theirs)
    assert result.labels == 0
    assert result.cosine == pytest.approx(-1)


def test_labels_of_places_in_an_image() -> None:
    theirs = torch.zeros(1, 3, 2, 2)
    theirs[:, 1] = 1
    ours = theirs.clone()
    ours[0, :, 0, 0] = torch.tensor([1.0, 0.0, 0.0])
    assert agreement("logits", ours, theirs).labels == 0.75


def test_whole_numbers() -> None:
    result = agreement("tokens", torch.tensor([[1, 2, 3, 5]]), torch.tensor([[1, 2, 3, 4]]))
    assert result.labels == 0.75


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_what_is_no_number(wrong: float) -> None:
    theirs = torch.randn(1, 128)
    ours = theirs.clone()
    ours[0, 5] = wrong
    assert agreement("embedding", ours, theirs).difference == math.inf


def test_what_is_masked_in_both_is_left_out() -> None:
    theirs = torch.randn(1, 128)
    theirs[0, :5] = -math.inf
    result = agreement("logits", theirs.clone(), theirs)
    assert result.difference == 0
    assert result.cosine == pytest.approx(1)


def test_another_shape() -> None:
    assert agreement("logits", torch.zeros(1, 3), torch.zeros(1, 4)).difference == math.inf
