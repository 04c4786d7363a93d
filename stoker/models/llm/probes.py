"""Prompts with known logits from torch, used to verify a converted language model.

They are stored in the conversion's folder, so a trial on another machine needs no torch model.
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
"""Bytes of the cache for the comparison. Models with a short context would otherwise have too
little.
"""
LENGTHS = (7, 48, 200, 33)
"""Lengths of the prompts in tokens. The last prompt is computed at once and alone, the others in
pieces that share passes. No two of them begin alike, so none is read from a cache.
"""
_PROMPTS, _LOGITS = "probes.json", "probes.npy"


@dataclass(frozen=True)
class Probes:
    """Prompts of token IDs and torch's logits for them."""

    prompts: list[list[int]]
    logits: torch.Tensor
    """Logits after each prompt: float32 (prompts, vocabulary)."""

    def write(self, folder: Path) -> None:
        (folder / _PROMPTS).write_text(json.dumps(self.prompts))
        np.save(folder / _LOGITS, self.logits.numpy(), allow_pickle=False)

    @classmethod
    def read(cls, folder: Path) -> "Probes":
        logits = np.load(folder / _LOGITS, allow_pickle=False)
        return cls(json.loads((folder / _PROMPTS).read_bytes()), torch.as_tensor(logits))

    def difference(self, rows: torch.Tensor) -> float:
        """Returns the largest difference of a logit, as a share of the largest known one."""
        worst = 0.0
        for row, known in zip(rows, self.logits, strict=True):
            row_difference = float((row - known).abs().max() / known.abs().max().clamp(min=1e-6))
            # A NaN would pass every comparison.
            worst = max(worst, math.inf if math.isnan(row_difference) else row_difference)
        return worst


def drawn(
    vocabulary: int,
    most: int,
    lengths: Sequence[int] = LENGTHS,
    without: Collection[int] = frozenset(),
) -> list[list[int]]:
    """Returns prompts of these lengths, with at most `most` tokens each. They are the same on each
    call.
    """
    generator = torch.Generator().manual_seed(0)
    is_text = torch.ones(vocabulary, dtype=torch.bool)
    is_text[[token for token in without if 0 <= token < vocabulary]] = False
    tokens = is_text.nonzero().flatten()
    places = [torch.randint(0, len(tokens), (size,), generator=generator) for size in lengths]
    return [[int(token) for token in tokens[some]][:most] for some in places]


def computed(
    runner: "Runner", prompts: Sequence[Sequence[int]], alive: Callable[[], None] = lambda: None
) -> torch.Tensor:
    """Returns the logits after prompts, float32 (prompts, vocabulary), on the CPU.

    They are computed like those of requests. All but one prompt run in pieces that share passes,
    with a last piece of one token as if it had been drawn. The last prompt runs at once.

    Raises `NotExportableError` if the cache has no room for them.
    """
    for number, one in enumerate(prompts):
        if runner.admit(number, one) is None or not runner.reserve(number, len(one)):
            raise NotExportableError("The model's cache has no room for the comparison.")
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
            # The runner reuses its result in the next pass.
            rows = runner.forward(pieces).to("cpu", copy=True)
        alive()
    length = len(prompts[last])
    piece = _chunk(last, prompts[last], 0, length, sampled=True)
    last_row = runner.forward([piece]).to("cpu", copy=True)
    alive()
    for number in range(len(prompts)):
        runner.release(number)
    return torch.cat([rows, last_row])


def _chunk(number: int, prompt: Sequence[int], start: int, end: int, *, sampled: bool) -> "Chunk":
    from stoker.models.llm.runner import Chunk

    return Chunk(number, prompt[start:end], start, sampled=sampled)
