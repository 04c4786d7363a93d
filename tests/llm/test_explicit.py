"""Attention with caps and sinks, against torch's scaled dot product and the plain formula."""

from typing import Any

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from stoker.models.llm.engines.paged import explicit
from stoker.models.llm.engines.paged.attention import AttentionInputs

SEQUENCES, KEY_HEADS, REPEATS, QUERIES, WIDTH, SIZE = 2, 2, 3, 5, 9, 8


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape)))


QUERY = 3 * drawn(SEQUENCES, KEY_HEADS, REPEATS, QUERIES, SIZE)
KEYS, VALUES = drawn(2, SEQUENCES, KEY_HEADS, WIDTH, SIZE)
SEEN = torch.ones(QUERIES, WIDTH, dtype=torch.bool).tril(WIDTH - QUERIES)[None, None]
SINKS = drawn(KEY_HEADS * REPEATS)


def inputs(**options: Any) -> AttentionInputs:
    empty = torch.empty(0)
    return AttentionInputs(empty, empty, empty, **{"scale": 0.3, "window": None} | options)


def known(cap: float | None, sinks: torch.Tensor | None) -> torch.Tensor:
    """Computes the output with the plain formula, one query at a time."""
    output = torch.zeros(*QUERY.shape[:-1], SIZE)
    for place in torch.cartesian_prod(*map(torch.arange, QUERY.shape[:-1])):
        sequence, head, repeat, query = place.tolist()
        scores = KEYS[sequence, head] @ QUERY[sequence, head, repeat, query] * 0.3
        if cap:
            scores = cap * torch.tanh(scores / cap)
        weights = torch.where(SEEN[0, 0, query], scores.exp(), 0)
        total = weights.sum()
        if sinks is not None:
            total += sinks[head * REPEATS + repeat].exp()
        output[sequence, head, repeat, query] = weights / total @ VALUES[sequence, head]
    return output


@pytest.mark.parametrize("most_scores", [1, 2 * SEQUENCES * KEY_HEADS * REPEATS * WIDTH, 1 << 20])
@pytest.mark.parametrize("is_added", [False, True])
@pytest.mark.parametrize(("cap", "sinks"), [(2.0, None), (None, SINKS), (2.0, SINKS)])
def test_equals_the_formula(
    cap: float | None,
    sinks: torch.Tensor | None,
    is_added: bool,
    most_scores: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(explicit, "MOST_SCORES", most_scores)
    mask = torch.zeros(SEEN.shape).masked_fill(~SEEN, -torch.inf) if is_added else SEEN
    output = explicit.attention(QUERY, KEYS, VALUES, mask, inputs(cap=cap, sinks=sinks))
    torch.testing.assert_close(output, known(cap, sinks))


def test_without_either_it_is_the_scaled_dot_product() -> None:
    output = explicit.attention(QUERY, KEYS, VALUES, None, inputs(scale=None))
    expected = scaled_dot_product_attention(QUERY.flatten(2, 3), KEYS, VALUES)
    torch.testing.assert_close(output, expected.view(output.shape))


def test_half_precision() -> None:
    half = [part.bfloat16() for part in (QUERY, KEYS, VALUES)]
    output = explicit.attention(*half, SEEN, inputs(cap=2.0, sinks=SINKS.bfloat16()))
    assert output.dtype == torch.bfloat16
    torch.testing.assert_close(output.float(), known(2.0, SINKS), atol=3e-2, rtol=0)
