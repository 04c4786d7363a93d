"""State of a sequence in the scheduler."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stoker.models.llm.draws import Draws
from stoker.models.llm.interface import Output, Submission
from stoker.models.llm.lookup import Lookup
from stoker.models.llm.runner import Chunk, Runner
from stoker.models.llm.sampling import scored
from stoker.models.llm.speculation import MOST

if TYPE_CHECKING:
    import torch


@dataclass(eq=False)
class Running:
    """Tokens of a sequence, and its progress."""

    submission: Submission
    draws: Draws
    ends: frozenset[int]
    tokens: list[int]
    """The prompt and the drawn tokens."""
    runner: Runner
    computed: int = 0
    """Number of leading tokens with keys and values in the runner's cache."""
    cached: int = 0
    """Number of prompt tokens that were already computed for another sequence."""
    begun: bool = False
    """True if it was admitted before."""
    reported: int = 1
    """Number of leading prompt tokens with reported log probabilities. The first token has none."""
    turn: int = 0
    """Turn of its key. Prompts with a lower turn are computed first."""
    head_start: int = 0
    """Number of turns by which its turn comes before that of its key."""
    draft: Sequence[int] = ()
    """Guessed tokens after the next token, while they are computed."""
    lookup: Lookup | None = None
    """Guesses its next tokens. None if speculation is off."""

    @property
    def id(self) -> int:
        return self.submission.id

    @property
    def generated(self) -> int:
        return len(self.tokens) - len(self.submission.prompt)

    @property
    def at_images(self) -> bool:
        """True if its images must be computed next."""
        return self.submission.media is not None and self.computed == 0

    @property
    def scored(self) -> bool:
        """True if log probabilities of the prompt's tokens must still be reported."""
        is_requested = self.submission.sampling.prompt_logprobs is not None
        return is_requested and self.reported < len(self.submission.prompt)

    @property
    def is_background(self) -> bool:
        return self.submission.tier.is_background

    @property
    def rank(self) -> tuple[bool, int]:
        """Sort key: drawing sequences first, then prompts by their turn."""
        is_prompt = len(self.tokens) - self.computed > 1
        return is_prompt, self.turn if is_prompt else 0

    def next(self, budget: int) -> int:
        """Returns how many tokens to compute next, at most `budget` unless its images are next."""
        # A prompt's images attend to one another in both directions, so they are never split. Drawn
        # tokens are computed in the next pass, because a placeholder among them stands for no
        # image.
        if self.at_images:
            return len(self.submission.prompt)
        return min(budget, len(self.tokens) - self.computed)

    def chunk(self, end: int) -> Chunk:
        """Returns the chunk of the next tokens, up to `end`."""
        start = self.computed
        is_last = end == len(self.tokens)
        return Chunk(self.id, self.tokens[start:end], start, is_last, self.scored)

    def told(self, chunk: Chunk, logits: "torch.Tensor") -> Output:
        """Returns the log probabilities of the prompt's tokens that follow each token of a
        chunk.
        """
        prompt, start = self.submission.prompt, chunk.start
        first, last = max(self.reported, start + 1), min(start + len(logits), len(prompt) - 1)
        rows = logits[first - start - 1 : last - start]
        top = self.submission.sampling.prompt_logprobs or 0
        self.reported = max(self.reported, last + 1)
        return Output(self.id, [], [], prompt=scored(rows, prompt[first : last + 1], top))

    def chances(self, count: int) -> list[float]:
        """Returns for each guessed token the chance that it and all before it are right."""
        return [self.lookup.chance(place) for place in range(count)] if self.lookup else []

    def guess(self) -> list[int]:
        """Returns guesses of the tokens after the next one, limited to a useful number."""
        if self.lookup is None or not self.lookup.follow():
            return []
        remaining = (self.submission.sampling.max_tokens or 0) - self.generated
        room = self.runner.max_length - len(self.tokens)
        tokens = self.lookup.guess(min(MOST, remaining - 1, room - 1))
        return [] if self.runner.outgrown(self.id, len(self.tokens) + len(tokens)) else tokens
