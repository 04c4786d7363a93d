"""Draws tokens from logits: penalties, biases, truncation, seeds, log probabilities.

Each row has its own random numbers, so a seed repeats its result in any batch. One uniform number
per token decides, by the inverse of the cumulative distribution. That costs a row one pass over the
vocabulary, instead of one random number for each token of the vocabulary.
"""

import random
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from stoker.models.llm.errors import DrawError, FormError
from stoker.models.llm.interface import Logprob
from stoker.wire.generation_request import Sampling

if TYPE_CHECKING:
    from stoker.models.llm.logit_rules import LogitRules
    from stoker.models.llm.matcher import Matcher

NOTHING = "The model returned no token that could be sampled."
UNWRITABLE = (
    "The answer cannot follow the requested form: the model's tokenizer, or its "
    "generation_config.json, has no token that may come next. Request a less "
    "restrictive form, or none."
)
_COLDEST = 1e-6
"""Minimum temperature. Below it, logits would overflow, and the likeliest token has all of the
probability anyway.
"""
_CANDIDATES = 256
"""Number of likeliest tokens that are sorted first, before the whole vocabulary. They nearly always
suffice.
"""


class Draws:
    """Sampling state of one sequence."""

    def __init__(
        self,
        sampling: Sampling,
        prompt: Sequence[int],
        ends: frozenset[int],
        vocabulary: int,
        matcher: "Matcher | None" = None,
        *,
        rules: "LogitRules | None" = None,
    ) -> None:
        """
        Args:
            rules: rules of the model's generation_config.json. None if it has none.
        """
        self.sampling = sampling
        self.matcher = matcher
        self._random = random.Random(sampling.seed)  # noqa: S311 - draws tokens, no secrets
        self._generated: Counter[int] = Counter()
        self._ends = sorted(token for token in ends if token < vocabulary)
        self._rules = rules.begin(prompt, sampling, self._ends) if rules else None
        is_penalized = (sampling.repetition_penalty or 1.0) != 1.0 and not self._rules
        self._seen = set(prompt) if is_penalized else None
        self._bias = (
            (
                torch.tensor(list(sampling.logit_bias)),
                torch.tensor(list(sampling.logit_bias.values())),
            )
            if sampling.logit_bias
            else None
        )
        self._banned: torch.Tensor | None = None
        """Mask of the tokens that may not be drawn, if only some tokens are allowed."""
        if sampling.allowed_tokens:
            self._banned = torch.ones(vocabulary, dtype=torch.bool)
            self._banned[torch.tensor(sampling.allowed_tokens)] = False
        self._count = 0

    @property
    def greedy(self) -> bool:
        return not self.sampling.temperature

    @property
    def plain(self) -> bool:
        """True if the result is the likeliest token of the unchanged logits."""
        sampling = self.sampling
        return (
            self.greedy
            and self.matcher is None
            and self._rules is None
            and sampling.logprobs is None
            and self._bias is None
            and self._banned is None
            and self._seen is None
            and not sampling.frequency_penalty
            and not sampling.presence_penalty
            and self._count >= (sampling.min_tokens or 0)
        )

    def uniform(self) -> float:
        return self._random.random()

    def count(self, token: int) -> None:
        self._count += 1
        self._generated[token] += 1
        if self._seen is not None:
            self._seen.add(token)
        if self._rules:
            self._rules.count(token)

    def shaped(self, logits: torch.Tensor) -> torch.Tensor:
        """Returns a copy of the logits (vocabulary,) after all changes of single tokens."""
        sampling = self.sampling
        row = self._rules.shaped(logits.clone()) if self._rules else logits.clone()
        if self._seen:
            # As in https://arxiv.org/abs/1909.05858, section 4.1.
            seen_tokens = torch.tensor(sorted(self._seen))
            penalty = sampling.repetition_penalty or 1.0
            values = row[seen_tokens]
            row[seen_tokens] = torch.where(values > 0, values / penalty, values * penalty)
        if self._generated and (sampling.frequency_penalty or sampling.presence_penalty):
            tokens = torch.tensor(list(self._generated))
            counts = torch.tensor(list(self._generated.values()), dtype=row.dtype)
            row[tokens] -= sampling.frequency_penalty * counts + sampling.presence_penalty
        if self._bias:
            row[self._bias[0]] += self._bias[1]
        if self._banned is not None:
            row.masked_fill_(self._banned, -torch.inf)
        if not self._rules and self._count < (sampling.min_tokens or 0):
            row[self._ends] = -torch.inf
        if self.matcher is not None:
            self.matcher.mask(row)
        return row

    def truncated(self, row: torch.Tensor) -> torch.Tensor | None:
        """Returns the logits after the truncation by the model's rules. None if the request's
        options decide.
        """
        return self._rules.truncated(row) if self._rules and self._rules.draws else None


Drawn = tuple[int, Logprob | None]


@torch.inference_mode()
def draw(logits: torch.Tensor, rows: Sequence[Draws]) -> list[Drawn | DrawError]:
    """Draws a token for each row, with its log probability if requested.

    Args:
        logits: (rows, vocabulary), float32.
        rows: sampling state of each row. Each counts the drawn token.

    Returns:
        A token or, for a row without a possible token, the error. The other rows are unaffected.
    """
    if all(draws.plain for draws in rows):
        values, tokens = logits.max(-1)
        results: list[Drawn | DrawError] = [
            (int(token), None) if torch.isfinite(value) else DrawError(NOTHING)
            for value, token in zip(values, tokens, strict=True)
        ]
    else:
        results = [_attempted(logits[place], draws) for place, draws in enumerate(rows)]
    for draws, drawn in zip(rows, results, strict=True):
        if not isinstance(drawn, DrawError):
            draws.count(drawn[0])
    return results


def _attempted(logits: torch.Tensor, one: Draws) -> Drawn | DrawError:
    try:
        return _drawn(logits, one)
    except DrawError as error:
        return error


def _drawn(logits: torch.Tensor, one: Draws) -> tuple[int, Logprob | None]:
    row = logits if one.plain else one.shaped(logits)
    if not torch.isfinite(row.max()):
        if one.matcher is not None and torch.isfinite(logits.max()):
            raise FormError(UNWRITABLE)
        raise DrawError(NOTHING)
    token = int(row.argmax()) if one.greedy else _sampled(row, one)
    if one.sampling.logprobs is None:
        return token, None
    return token, _logprob(logits, token, one.sampling.logprobs)


def _sampled(row: torch.Tensor, one: Draws) -> int:
    sampling = one.sampling
    if (truncated := one.truncated(row)) is not None:
        return _inverse(torch.softmax(truncated, dim=-1), one.uniform())
    temperature = max(sampling.temperature or 1.0, _COLDEST)
    probabilities = torch.softmax((row - row.max()) / temperature, dim=-1)
    top_k, top_p, min_p = sampling.top_k or 0, sampling.top_p or 1.0, sampling.min_p or 0.0
    if not top_k and top_p >= 1.0 and not min_p:
        return _inverse(probabilities, one.uniform())
    values, tokens = _likeliest(probabilities, top_k, top_p, min_p)
    return int(tokens[_inverse(values, one.uniform())])


def _likeliest(
    probabilities: torch.Tensor, top_k: int, top_p: float, min_p: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the tokens that may be drawn and their probabilities, in descending order."""
    size = probabilities.numel()
    for candidates in (min(_CANDIDATES, size), size):
        values, tokens = torch.topk(probabilities, candidates)
        count = candidates if not top_k else min(top_k, candidates)
        # The tokens that top_k keeps form a distribution of their own.
        leading = values[:count]
        before = (leading.cumsum(-1) - leading) / (leading.sum() if top_k else 1.0)
        # A token is kept while the tokens before it have not reached top_p. The first is always
        # kept.
        count = min(count, max(1, int((before < top_p).sum())))
        count = min(count, max(1, int((values >= min_p * values[0]).sum())))
        if count < candidates or candidates in (size, top_k):
            return values[:count], tokens[:count]
    raise AssertionError("the whole vocabulary always suffices")


def _inverse(probabilities: torch.Tensor, uniform: float) -> int:
    cumulative = probabilities.cumsum(-1)
    place = torch.searchsorted(cumulative, cumulative[-1] * uniform, right=True)
    # Rounding may put the number at the very end, among tokens without probability.
    place = min(int(place), probabilities.numel() - 1)
    while place > 0 and probabilities[place] == 0:
        place -= 1
    return place


def _logprob(logits: torch.Tensor, token: int, top: int) -> Logprob:
    return scored(logits[None], [token], top)[0]


@torch.inference_mode()
def scored(logits: torch.Tensor, tokens: Sequence[int], top: int) -> list[Logprob]:
    """Returns the log probability of each row's token.

    Args:
        logits: (rows, vocabulary), float32.
        top: number of likeliest tokens to report with each token.
    """
    totals = torch.logsumexp(logits, dim=-1, keepdim=True)
    places = torch.tensor(tokens, dtype=torch.long)[:, None]
    logprobs = [float(value) for value in (logits.gather(-1, places) - totals)[:, 0]]
    if not top:
        return [Logprob(token, value) for token, value in zip(tokens, logprobs, strict=True)]
    values, top_tokens = torch.topk(logits, min(top, logits.shape[-1]))
    return [
        Logprob(
            token,
            value,
            [(int(top_token), float(its)) for top_token, its in zip(*likeliest, strict=True)],
        )
        for token, value, *likeliest in zip(
            tokens, logprobs, top_tokens, values - totals, strict=True
        )
    ]
