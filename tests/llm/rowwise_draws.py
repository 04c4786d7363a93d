"""Draws tokens row by row on the CPU: the reference for the draws of whole batches."""

import random
from collections import Counter
from collections.abc import Sequence

import torch

from stoker.models.llm.matcher import Matcher
from stoker.wire.generation_request import Sampling

CANDIDATES = 256
COLDEST = 1e-6


class RowwiseDraws:
    """Sampling state of one sequence."""

    def __init__(
        self,
        sampling: Sampling,
        prompt: Sequence[int],
        ends: frozenset[int],
        vocabulary: int,
        matcher: Matcher | None = None,
    ) -> None:
        self.sampling = sampling
        self._matcher = matcher
        self._random = random.Random(sampling.seed)
        self._generated: Counter[int] = Counter()
        self._ends = sorted(token for token in ends if token < vocabulary)
        is_penalized = (sampling.repetition_penalty or 1.0) != 1.0
        self._seen = set(prompt) if is_penalized else None
        self._count = 0

    def draw(self, logits: torch.Tensor) -> int | None:
        """Returns a token, or None if none can be drawn.

        Args:
            logits: (vocabulary,), float32.
        """
        row = self._shaped(logits)
        if not torch.isfinite(row.max()):
            return None
        token = self._drawn(row) if self.sampling.temperature else int(row.argmax())
        self._count += 1
        self._generated[token] += 1
        if self._seen is not None:
            self._seen.add(token)
        return token

    def _shaped(self, logits: torch.Tensor) -> torch.Tensor:
        sampling, row = self.sampling, logits.clone()
        if self._seen:
            seen_tokens = torch.tensor(sorted(self._seen))
            penalty = sampling.repetition_penalty or 1.0
            values = row[seen_tokens]
            row[seen_tokens] = torch.where(values > 0, values / penalty, values * penalty)
        if self._generated and (sampling.frequency_penalty or sampling.presence_penalty):
            tokens = torch.tensor(list(self._generated))
            counts = torch.tensor(list(self._generated.values()), dtype=row.dtype)
            row[tokens] -= sampling.frequency_penalty * counts + sampling.presence_penalty
        if sampling.logit_bias:
            tokens = torch.tensor(list(sampling.logit_bias))
            row[tokens] += torch.tensor(list(sampling.logit_bias.values()))
        if sampling.allowed_tokens:
            banned = torch.ones(len(row), dtype=torch.bool)
            banned[torch.tensor(sampling.allowed_tokens)] = False
            row.masked_fill_(banned, -torch.inf)
        if self._count < (sampling.min_tokens or 0):
            row[self._ends] = -torch.inf
        if self._matcher is not None:
            self._matcher.mask(row)
        return row

    def _drawn(self, row: torch.Tensor) -> int:
        sampling = self.sampling
        temperature = max(sampling.temperature or 1.0, COLDEST)
        probabilities = torch.softmax((row - row.max()) / temperature, dim=-1)
        top_k, top_p, min_p = sampling.top_k or 0, sampling.top_p or 1.0, sampling.min_p or 0.0
        if not top_k and top_p >= 1.0 and not min_p:
            return _inverse(probabilities, self._random.random())
        values, tokens = _likeliest(probabilities, top_k, top_p, min_p)
        return int(tokens[_inverse(values, self._random.random())])


def _likeliest(
    probabilities: torch.Tensor, top_k: int, top_p: float, min_p: float
) -> tuple[torch.Tensor, torch.Tensor]:
    size = probabilities.numel()
    for candidates in (min(CANDIDATES, size), size):
        values, tokens = torch.topk(probabilities, candidates)
        count = candidates if not top_k else min(top_k, candidates)
        leading = values[:count]
        before = (leading.cumsum(-1) - leading) / (leading.sum() if top_k else 1.0)
        count = min(count, max(1, int((before < top_p).sum())))
        count = min(count, max(1, int((values >= min_p * values[0]).sum())))
        if count < candidates or candidates in (size, top_k):
            return values[:count], tokens[:count]
    raise AssertionError("the whole vocabulary always suffices")


def _inverse(probabilities: torch.Tensor, uniform: float) -> int:
    cumulative = probabilities.cumsum(-1)
    place = torch.searchsorted(cumulative, cumulative[-1] * uniform, right=True)
    place = min(int(place), probabilities.numel() - 1)
    while place > 0 and probabilities[place] == 0:
        place -= 1
    return place
