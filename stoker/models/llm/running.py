"""A sequence while the scheduler has it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stoker.models.llm.interface import Output, Submission
from stoker.models.llm.lookup import Lookup
from stoker.models.llm.runner import Chunk, Runner
from stoker.models.llm.sampling import Draws, scored
from stoker.models.llm.speculation import MOST

if TYPE_CHECKING:
    import torch


@dataclass(eq=False)
class Running:
    """What it has, and how far it is computed."""

    submission: Submission
    draws: Draws
    ends: frozenset[int]
    tokens: list[int]
    """The prompt and what was drawn."""
    runner: Runner
    computed: int = 0
    """Leading tokens whose keys and values are in the runner's cache."""
    cached: int = 0
    """Of the prompt's, those that were computed for another sequence before."""
    begun: bool = False
    """Whether it was admitted before."""
    reported: int = 1
    """Leading tokens of the prompt whose log probabilities were reported; the first has none."""
    turn: int = 0
    """Prompts of an earlier one are computed first."""
    draft: Sequence[int] = ()
    """What is guessed to be drawn behind the next token, while that is computed."""
    lookup: Lookup | None = None
    """Guesses what it draws; None: nothing does."""

    @property
    def id(self) -> int:
        return self.submission.id

    @property
    def generated(self) -> int:
        return len(self.tokens) - len(self.submission.prompt)

    @property
    def at_images(self) -> bool:
        """Whether images are what is to be computed next."""
        return self.submission.media is not None and self.computed == 0

    @property
    def scored(self) -> bool:
        """Whether log probabilities of the prompt's tokens are still to be reported."""
        wanted = self.submission.sampling.prompt_logprobs is not None
        return wanted and self.reported < len(self.submission.prompt)

    @property
    def rank(self) -> tuple[bool, int]:
        """Those that draw are computed first, then prompts in turn."""
        is_prompt = len(self.tokens) - self.computed > 1
        return is_prompt, self.turn if is_prompt else 0

    def next(self, budget: int) -> int:
        """How many tokens to compute next."""
        # A prompt's images attend to one another in both directions: they are never in two pieces.
        # What was drawn is left to the next one: a placeholder among it stands for nothing.
        if self.at_images:
            return len(self.submission.prompt)
        return min(budget, len(self.tokens) - self.computed)

    def chunk(self, end: int) -> Chunk:
        """What is computed next, up to this token."""
        start = self.computed
        is_last = end == len(self.tokens)
        return Chunk(self.id, self.tokens[start:end], start, is_last, self.scored)

    def told(self, chunk: Chunk, logits: "torch.Tensor") -> Output:
        """The log probabilities of the prompt's tokens that come after each of a chunk's."""
        prompt, start = self.submission.prompt, chunk.start
        first, last = max(self.reported, start + 1), min(start + len(logits), len(prompt) - 1)
        rows = logits[first - start - 1 : last - start]
        top = self.submission.sampling.prompt_logprobs or 0
        self.reported = max(self.reported, last + 1)
        return Output(self.id, [], [], prompt=scored(rows, prompt[first : last + 1], top))

    def chances(self, count: int) -> list[float]:
        """Of the guess's tokens: that each and all before it are right."""
        return [self.lookup.chance(place) for place in range(count)] if self.lookup else []

    def guess(self) -> list[int]:
        """What it may draw behind the next token, as far as that can be of use."""
        if self.lookup is None or not self.lookup.follow():
            return []
        left = (self.submission.sampling.max_tokens or 0) - self.generated
        room = self.runner.max_length - len(self.tokens)
        found = self.lookup.guess(min(MOST, left - 1, room - 1))
        return [] if self.runner.outgrown(self.id, len(self.tokens) + len(found)) else found
