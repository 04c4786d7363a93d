"""Samples a token for each row of a batch of logits, with operations on the logits' device.

One uniform number per row selects the token by inverse transform sampling. That takes one pass over
the vocabulary, instead of one random number per token of the vocabulary.

Results are tensors on the device. Nothing here synchronizes with the device.
"""

from dataclasses import dataclass
from typing import Protocol

import torch

from stoker.models.llm.token_edits import uploaded

CANDIDATES = 256
"""Number of likeliest tokens that are sorted at first, instead of the whole vocabulary. They nearly
always suffice.
"""


@dataclass(frozen=True)
class SamplerOptions:
    """Sampling options of each row: float32 (rows, 1)."""

    uniform: torch.Tensor
    temperature: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor | None
    """None if it is 0 for all rows."""
    top_k: torch.Tensor | None
    """0 means no limit. None if it is 0 for all rows."""


@dataclass(frozen=True)
class SampledTokens:
    """One token per row."""

    token: torch.Tensor
    """(rows, 1), int64."""
    largest: torch.Tensor
    """(rows, 1), float32: the largest logit. If it is not finite, no token can be sampled, and
    `token` has no meaning.
    """
    exact: torch.Tensor
    """(rows, 1), bool. False if the token must be sampled again, with `thorough`."""


class Sampler(Protocol):
    """Samples a token of each row of (rows, vocabulary)."""

    def __call__(
        self, scores: torch.Tensor, options: SamplerOptions, *, thorough: bool = False
    ) -> SampledTokens: ...


def greedy(
    scores: torch.Tensor, options: SamplerOptions, *, thorough: bool = False
) -> SampledTokens:
    """Returns the likeliest token."""
    del options, thorough
    values, tokens = largest_logits(scores)
    return SampledTokens(tokens, values, torch.ones_like(tokens, dtype=torch.bool))


def largest_logits(scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the largest logit of each row and its first token: each (rows, 1)."""
    if scores.device.type != "cpu":
        values, tokens = scores.max(-1, keepdim=True)
        return values, tokens
    # NumPy's search takes an eighth of the time of torch's.
    tokens = uploaded(scores.numpy().argmax(-1, keepdims=True), scores.device)
    return scores.gather(-1, tokens), tokens


def sample_all(
    scores: torch.Tensor, options: SamplerOptions, *, thorough: bool = False
) -> SampledTokens:
    """Samples from the whole vocabulary.

    Args:
        thorough: if True, the result is exact for every row, at a higher cost. Otherwise it is
            exact for nearly every row.
    """
    probabilities, largest = _softmax(scores, options.temperature)
    cumulative = probabilities.cumsum(-1)
    target = cumulative[:, -1:] * options.uniform
    places = torch.searchsorted(cumulative, target, right=True)
    places = places.clamp_(max=scores.shape[-1] - 1)
    # Rounding may move the target behind the last token, or to a token without probability.
    if thorough:
        tokens = torch.arange(scores.shape[-1], device=scores.device)
        possible = (probabilities > 0) & (tokens <= places)
        places = torch.where(possible, tokens, 0).amax(-1, keepdim=True)
    return SampledTokens(places, largest, probabilities.gather(-1, places) > 0)


def sample_likeliest(
    scores: torch.Tensor, options: SamplerOptions, *, thorough: bool = False
) -> SampledTokens:
    """Samples from the tokens that `top_k`, `top_p` and `min_p` keep. They are applied in this
    order.

    Args:
        thorough: if True, sorts the whole vocabulary. Otherwise sorts `CANDIDATES` tokens.
    """
    probabilities, largest = _softmax(scores, options.temperature)
    size = scores.shape[-1]
    candidates = size if thorough else min(CANDIDATES, size)
    values, tokens = torch.topk(probabilities, candidates)
    count, cumulative = _kept(values, options)
    target = cumulative.gather(-1, count - 1) * options.uniform
    drawn = torch.searchsorted(cumulative, target, right=True)
    # Rounding may move the target behind the last token. Tokens without probability come last.
    last = torch.minimum(count, (values > 0).sum(-1, keepdim=True)) - 1
    token = tokens.gather(-1, torch.minimum(drawn, last).clamp_(min=0))
    exact = count <= (size if candidates == size else candidates - 1)
    if options.top_k is not None:
        exact |= options.top_k == candidates
    return SampledTokens(token, largest, exact)


def _kept(values: torch.Tensor, options: SamplerOptions) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns how many of the descending probabilities are kept, and their cumulative sums."""
    top_k = options.top_k
    if top_k is None:
        cumulative = values.cumsum(-1)
        reached = cumulative - values < options.top_p
    else:
        # The probabilities of the tokens that top_k keeps are normalised to a sum of one.
        inside = torch.arange(values.shape[-1], device=values.device) < top_k
        inside |= top_k == 0
        leading = torch.where(inside, values, 0)
        cumulative = leading.cumsum(-1)
        total = torch.where(top_k > 0, cumulative[:, -1:], 1)
        reached = inside & ((cumulative - leading) / total < options.top_p)
    # A token is kept while the tokens before it have not reached top_p. The first is always kept.
    count = reached.sum(-1, keepdim=True)
    if options.min_p is not None:
        likely = (values >= options.min_p * values[:, :1]).sum(-1, keepdim=True)
        count = torch.minimum(count, likely)
    return count.clamp_(min=1), cumulative


def logprobs(logits: torch.Tensor, tokens: torch.Tensor, top: int) -> list[torch.Tensor]:
    """Returns log probabilities of tokens and of the likeliest tokens.

    Args:
        logits: (rows, vocabulary), float32.
        tokens: (rows, 1).
        top: number of the likeliest tokens.

    Returns:
        The tokens' values (rows, 1), and the likeliest tokens and their values (rows, top).
    """
    # Unlike logsumexp, the sum of a row does not depend on the number of rows.
    known = torch.log_softmax(logits, dim=-1)
    values = known.gather(-1, tokens)
    if not top:
        return [values]
    top_tokens = torch.topk(logits, top).indices
    return [values, top_tokens, known.gather(-1, top_tokens)]


def _softmax(scores: torch.Tensor, temperature: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the probabilities, and the largest logit of each row."""
    largest = scores.amax(-1, keepdim=True)
    return torch.softmax((scores - largest).div_(temperature), dim=-1), largest
