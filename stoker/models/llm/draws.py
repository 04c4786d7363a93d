"""Sampling state of sequences: options, random numbers, and counts of sampled tokens."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from stoker.models.llm.samplers import Sampler, greedy, sample_all, sample_likeliest
from stoker.models.llm.token_edits import Array, BatchEdits, TokenCounts, packed, repeated
from stoker.wire.generation_request import Sampling

if TYPE_CHECKING:
    from stoker.models.llm.logit_rules import LogitRules
    from stoker.models.llm.matcher import Matcher

_COLDEST = 1e-6
"""Minimum temperature. Below it, the logits would overflow, and the likeliest token has a
probability of one anyway.
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
        self._uniforms: list[float] = []
        """Random numbers of the next tokens, as far as they were requested."""
        known_ends = sorted(token for token in ends if token < vocabulary)
        self._ends = np.array(known_ends, np.int64)
        self.rules = rules.begin(prompt, sampling, known_ends) if rules else None
        is_penalized = (sampling.repetition_penalty or 1.0) != 1.0 and not self.rules
        # Placeholder tokens of images may have no logit.
        known_tokens = (token for token in prompt if token < vocabulary)
        self._seen = TokenCounts(known_tokens) if is_penalized else None
        """Tokens of the prompt and the answer, if these are penalized."""
        is_counted = sampling.frequency_penalty or sampling.presence_penalty
        self._generated = TokenCounts() if is_counted else None
        """Tokens of the answer, if these are penalized."""
        self._allowed = (
            packed(sampling.allowed_tokens, vocabulary) if sampling.allowed_tokens else None
        )
        self._count = 0

    @property
    def greedy(self) -> bool:
        return not self.sampling.temperature

    @property
    def independent(self) -> bool:
        """True if the distribution of a token does not depend on the tokens sampled before it."""
        return (
            self.matcher is None
            and self.rules is None
            and self._seen is None
            and self._generated is None
        )

    def changes(self, place: int = 0) -> bool:
        """Returns True if the logits of a token are changed before it is sampled.

        Args:
            place: number of sampled tokens before it that are not counted yet.
        """
        return not (
            self.independent
            and self._allowed is None
            and not self.sampling.logit_bias
            and self._count + place >= (self.sampling.min_tokens or 0)
        )

    def uniform(self, place: int = 0) -> float:
        """Returns the random number of a token. `place` is as in `changes`."""
        while len(self._uniforms) <= place:
            self._uniforms.append(self._random.random())
        return self._uniforms[place]

    def count(self, token: int) -> None:
        """Counts a sampled token."""
        self._count += 1
        del self._uniforms[:1]
        for counts in (self._seen, self._generated):
            if counts is not None:
                counts.add(token)
        if self.rules:
            self.rules.count(token)

    def edit(self, edits: BatchEdits, start: int, place: int = 0) -> None:
        """Adds the changes of single logits.

        Args:
            start: index of the row's first logit.
            place: see `changes`.
        """
        sampling = self.sampling
        if self._seen:
            tokens = self._seen.tokens
            edits.scaled.add(start, tokens, repeated(sampling.repetition_penalty or 1.0, tokens))
        if generated := self._generated:
            amounts = np.float32(sampling.frequency_penalty) * generated.counts
            amounts += np.float32(sampling.presence_penalty)
            edits.lowered.add(start, generated.tokens, amounts)
        if bias := sampling.logit_bias:
            tokens = np.fromiter(bias, np.int64)
            edits.raised.add(start, tokens, np.fromiter(bias.values(), np.float32))
        if not self.rules and self._count + place < (sampling.min_tokens or 0):
            edits.excluded.add(start, self._ends, repeated(0.0, self._ends))

    def mask(self) -> Array | None:
        """Returns the tokens that may be sampled, as a `packed` mask. None means all tokens.

        Raises:
            FormError: the form requires more work than a step may cost.
        """
        formed = self.matcher.allowed() if self.matcher else None
        allowed = self._allowed
        if formed is None or allowed is None:
            return allowed if formed is None else formed
        size = min(len(formed), len(allowed))
        return formed[:size] & allowed[:size]


@dataclass(frozen=True)
class DrawRow:
    """Row of logits from which a token is sampled."""

    draws: Draws
    place: int = 0
    """Number of draft tokens before it. They count as sampled."""

    @property
    def plain(self) -> bool:
        """True if the result is the likeliest token of the unchanged logits."""
        draws = self.draws
        return draws.greedy and draws.sampling.logprobs is None and not draws.changes(self.place)

    @property
    def by_rules(self) -> bool:
        """True if the model's rules truncate the distribution instead of the request's options."""
        return self.draws.rules is not None and self.draws.rules.draws

    @property
    def sampler(self) -> Sampler:
        """Function that samples the token."""
        sampling = self.draws.sampling
        if self.draws.greedy:
            return greedy
        truncates = sampling.top_k or (sampling.top_p or 1.0) < 1.0 or sampling.min_p
        return sample_likeliest if truncates and not self.by_rules else sample_all

    @property
    def options(self) -> tuple[float, ...]:
        """Values of `samplers.SamplerOptions`."""
        sampling = self.draws.sampling
        temperature = 1.0 if self.by_rules else max(sampling.temperature or 1.0, _COLDEST)
        return (
            0.0 if self.draws.greedy else self.draws.uniform(self.place),
            temperature,
            sampling.top_p or 1.0,
            sampling.min_p or 0.0,
            sampling.top_k or 0,
        )
