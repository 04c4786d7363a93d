"""Detects sequences whose tokens `generate` chose from NaN or infinity.

This module imports torch, so stages import it inside functions.
"""

import math
from typing import Any

import torch


class ScoreCheck:
    """A logits processor of transformers that marks each row with a NaN or an infinite score.

    The scores of such a row become equal, because sampling from NaN ends a process on a GPU.
    """

    def __init__(self) -> None:
        self._rows: torch.Tensor | None = None

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        # The maximum of values that include NaN is NaN. Excluded tokens have negative infinity.
        invalid = ~(scores.amax(-1) < math.inf)
        self._rows = invalid if self._rows is None else self._rows | invalid
        if scores.device.type == "cpu" and not invalid.any():
            # A copy takes ten times as long as the search. On a GPU, this question would wait.
            return scores
        return scores.masked_fill(invalid[:, None], 0.0)

    def invalid(self, sequences: torch.Tensor) -> torch.Tensor:
        """Returns which sequences contain a token of a marked row: bool (sequences,).

        Args:
            sequences: result of `generate`. With beam search, each has several rows.
        """
        if self._rows is None:
            return torch.zeros(len(sequences), dtype=torch.bool, device=sequences.device)
        return self._rows.view(len(sequences), -1).any(1)


def generated(model: Any, name: str, **options: Any) -> dict[str, torch.Tensor]:
    """Runs `generate`. Returns its sequences as output `name`, and which of them are invalid."""
    from transformers import LogitsProcessorList

    from stoker.models.stages.base import INVALID

    check = ScoreCheck()
    sequences = model.generate(**options, logits_processor=LogitsProcessorList([check]))
    return {name: sequences, INVALID: check.invalid(sequences)}
