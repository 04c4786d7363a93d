"""Prompts whose logits are known of torch: what a converted language model is compared by.

They lie in the folder of the conversion, so that a trial on another machine needs no torch model.
"""

import json
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from stoker.models.stages.stateful import NotExportableError

if TYPE_CHECKING:
    from stoker.models.llm.runner import Chunk, Runner

CACHE_BYTES = 64 << 20
"""Room for the comparison, which short models would not have by themselves."""
LENGTHS = (7, 48, 200, 33)
"""Of the prompts, tokens. The last one is computed at once and by itself, the others in pieces that
share passes: no two of them begin alike, so none is taken from a cache.
"""
_PROMPTS, _LOGITS = "probes.json", "probes.npy"


@dataclass(frozen=True)
class Probes:
    """Prompts of token ids and what torch computes of them."""

    prompts: list[list[int]]
    logits: torch.Tensor
    """After each prompt: float32 (prompts, vocabulary)."""

    def write(self, folder: Path) -> None:
        (folder / _PROMPTS).write_text(json.dumps(self.prompts))
        np.save(folder / _LOGITS, self.logits.numpy(), allow_pickle=False)

    @classmethod
    def read(cls, folder: Path) -> "Probes":
        logits = np.load(folder / _LOGITS, allow_pickle=False)
        return cls(json.loads((folder / _PROMPTS).read_bytes()), torch.as_tensor(logits))

    def difference(self, rows: torch.Tensor) -> float:
        """The largest difference of a logit, as a share of the largest that is known."""
        worst = 0.0
        for row, known in zip(rows, self.logits, strict=True):
            found = float((row - known).abs().max() / known.abs().max().clamp(min=1e-6))
            # A NaN would pass every comparison.
            worst = max(worst, math.inf if math.isnan(found) else found)
        return worst


def drawn(
    vocabulary: int,
    most: int,
    lengths: Sequence[int] = LENGTHS,
    without: Collection[int] = frozenset(),
) -> list[list[int]]:
    """Prompts of these lengths, of `most` tokens at most; the same ones each time."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.tensor([one for one in range(vocabulary) if one not in without])
    places = [torch.randint(0, len(tokens), (size,), generator=generator) for size in lengths]
    return [[int(one) for one in tokens[some]][:most] for some in places]


def computed(
    runner: "Runner", prompts: Sequence[Sequence[int]], alive: Callable[[], None] = lambda: None
) -> torch.Tensor:
    """The logits after prompts, float32 (prompts, vocabulary).

    They are computed as those of requests are: in pieces that share passes, the last piece of one
    token, as if it had been drawn; and one prompt at once.

    Raises `NotExportableError` where they have no room.
    """
    for number, one in enumerate(prompts):
        if runner.admit(number, one) is None or not runner.reserve(number, len(one)):
            raise NotExportableError("Its cache has no room for the comparison.")
    *shared, last = range(len(prompts))
    ends = [(len(prompts[one]) // 2, len(prompts[one]) - 1, len(prompts[one])) for one in shared]
    starts = [(0, *one[:-1]) for one in ends]
    rows = torch.empty(0)
    for place in range(3):
        pieces = [
            _chunk(number, prompts[number], start[place], end[place], sampled=place > 0)
            for number, start, end in zip(shared, starts, ends, strict=True)
            if start[place] < end[place]
        ]
        if pieces:
            # It is the runner's until the next pass.
            rows = runner.forward(pieces).clone()
        alive()
    length = len(prompts[last])
    own = runner.forward([_chunk(last, prompts[last], 0, length, sampled=True)]).clone()
    alive()
    for number in range(len(prompts)):
        runner.release(number)
    return torch.cat([rows, own])


def _chunk(number: int, prompt: Sequence[int], start: int, end: int, *, sampled: bool) -> "Chunk":
    from stoker.models.llm.runner import Chunk

    return Chunk(number, prompt[start:end], start, sampled=sampled)
