"""Continuous batching: sequences join and leave between forward passes.

Every step gives each sequence that has its prompt computed one token, and spends what is left of
the step's budget on prompts, first come first served; long prompts are computed in pieces, so they
never hold the others up for long. Where the cache is full, the youngest sequence gives its place
back and is computed again later: what was drawn is kept.
"""

import logging
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from stoker.llm.errors import DrawError, FormError
from stoker.llm.interface import Features, Finish, Logprob, Output, Submission
from stoker.llm.sampling import Draws, draw, scored
from stoker.wire.protocol import Sharing

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)

STEP_TOKENS = 256
"""Most tokens of a forward pass: more is hardly faster on a CPU, and makes those who wait for their
next token wait longer."""
SCORED_TOKENS = 64
"""Most tokens of prompts whose logits are all wanted in one forward pass: each takes a vocabulary's
floats."""
MAX_RUNNING = 256


@dataclass(frozen=True)
class Chunk:
    """Tokens of one sequence that a forward pass computes."""

    id: int
    tokens: Sequence[int]
    start: int
    """Position of the first one: so many are in the cache."""
    sampled: bool
    """Whether the logits after the last one are wanted."""
    scored: bool = False
    """Whether those after each one are wanted."""

    @property
    def rows(self) -> int:
        """How many rows of logits are wanted."""
        return len(self.tokens) if self.scored else int(self.sampled)


class Runner(Protocol):
    """A model that computes chunks of sequences and keeps their keys and values."""

    name: str
    sharing: Sharing | None
    """What was found of how sequences may be computed; None: nobody has looked."""
    max_length: int
    vocabulary: int

    def enter_thread(self) -> None:
        """Called once on the thread that will call the others."""
        ...

    def admit(
        self,
        identifier: int,
        tokens: Sequence[int],
        media: Features | None = None,
        *,
        anew: bool = False,
    ) -> int | None:
        """Take a sequence: how many of its leading tokens are computed already, fewer than all.

        None where there is no room for it now.

        Args:
            media: what the placeholders among the tokens stand for. Tokens alone do not distinguish
                such sequences: none is computed already.
            anew: none is to be taken as computed: its logits are wanted.
        """
        ...

    def reserve(self, identifier: int, length: int) -> bool:
        """Have room for so many tokens of a sequence; False where there is none."""
        ...

    def outgrown(self, identifier: int, length: int) -> bool:
        """Whether a sequence, once it has so many tokens, is to be computed anew from its first."""
        ...

    def forward(self, chunks: Sequence[Chunk]) -> "torch.Tensor":
        """The logits after each sampled chunk, float32 (rows, vocabulary), on the CPU.

        Of a scored chunk, those after each of its tokens. They are the caller's until the next
        call.
        """
        ...

    def release(self, identifier: int) -> None:
        """Forget a sequence."""
        ...

    @property
    def usage(self) -> float:
        """The share of the cache that sequences hold, 0 to 1."""
        ...


@dataclass(eq=False)
class Running:
    """A sequence in the scheduler's hands."""

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

    def next(self, budget: int) -> int:
        """How many tokens to compute next."""
        # A prompt's images attend to one another in both directions: they are never in two pieces.
        # What was drawn is left to the next one: a placeholder among it stands for nothing.
        if self.at_images:
            return len(self.submission.prompt)
        return min(budget, len(self.tokens) - self.computed)


class Scheduler:
    """A `LanguageModel` of anything that can compute chunks of sequences."""

    def __init__(
        self, runner: Runner, ends: Iterable[int], *, max_running: int = MAX_RUNNING
    ) -> None:
        """
        Args:
            ends: tokens by which the model ends its answer.
        """
        self._runner = runner
        self._ends = frozenset(ends)
        self._max_running = max_running
        self._waiting: deque[Running] = deque()
        self._active: list[Running] = []
        """In the order of admission."""

    @property
    def name(self) -> str:
        return self._runner.name

    @property
    def max_length(self) -> int:
        return self._runner.max_length

    @property
    def vocabulary(self) -> int:
        return self._runner.vocabulary

    @property
    def usage(self) -> float:
        return self._runner.usage

    @property
    def alive(self) -> bool:
        return True

    @property
    def children(self) -> Sequence[int]:
        return ()

    def enter_thread(self) -> None:
        self._runner.enter_thread()

    def wake(self) -> None:
        """A forward pass ends by itself."""

    @property
    def running(self) -> int:
        return len(self._waiting) + len(self._active)

    def adopt(self, runner: Runner) -> None:
        """Go on with another runner of the same model; what has begun ends where it is."""
        self._runner = runner

    def submit(self, submission: Submission) -> None:
        sampling = submission.sampling
        ends = frozenset(sampling.stop_token_ids)
        if not sampling.ignore_eos:
            ends |= self._ends
        draws = Draws(
            sampling, submission.prompt, ends, self._runner.vocabulary, submission.matcher
        )
        self._waiting.append(
            Running(submission, draws, ends, list(submission.prompt), self._runner)
        )

    def cancel(self, identifier: int) -> None:
        for one in self._active:
            if one.id == identifier:
                self._active.remove(one)
                one.runner.release(identifier)
                return
        self._waiting = deque(one for one in self._waiting if one.id != identifier)

    def step(self) -> list[Output]:
        self._admit()
        chunks = self._chunks()
        outputs: list[Output] = []
        for runner in {id(one.runner): one.runner for one, _ in chunks}.values():
            own = [pair for pair in chunks if pair[0].runner is runner]
            if texts := [pair for pair in own if not pair[0].at_images]:
                outputs += self._forward(runner, texts)
            for pair in own:
                if pair[0].at_images:
                    outputs += self._prefill_images(runner, pair)
        return outputs

    def abandon(self, why: str) -> list[Output]:
        outputs = [Output(one.id, [], [], error=why) for one in self._active]
        for output in outputs:
            self.cancel(output.id)
        return outputs

    # --- admission ---

    def _admit(self) -> None:
        """Let waiting sequences in, in turn, while there is room."""
        held: list[Running] = []
        while self._waiting and len(self._active) < self._max_running:
            one = self._waiting.popleft()
            if one.submission.after is not None and self._computing(one.submission.after):
                # It will find the prompt computed; those behind it need not wait for that.
                held.append(one)
                continue
            one.runner = self._runner
            media = one.submission.media
            computed = one.runner.admit(one.id, one.tokens, media, anew=one.scored)
            if computed is None:
                self._waiting.appendleft(one)
                break
            one.computed = computed
            if not one.begun:
                one.begun, one.cached = True, computed
            self._active.append(one)
        self._waiting.extendleft(reversed(held))

    def _computing(self, identifier: int) -> bool:
        """Whether a sequence waits or is still at its prompt."""
        return any(one.id == identifier for one in self._waiting) or any(
            one.id == identifier and one.computed < len(one.submission.prompt)
            for one in self._active
        )

    # --- one step ---

    def _chunks(self) -> list[tuple[Running, Chunk]]:
        """What to compute: those that draw a token first, then prompts."""
        budget, scored = STEP_TOKENS, SCORED_TOKENS
        found: list[tuple[Running, Chunk]] = []
        for one in sorted(self._active, key=lambda one: len(one.tokens) - one.computed > 1):
            most = min(budget, scored) if one.scored else budget
            # It may have been preempted for one before it.
            if one not in self._active or most <= 0:
                continue
            size = one.next(most)
            if not self._reserve(one, one.computed + size):
                continue
            if one.scored:
                scored -= size
            found.append((one, _chunk(one, one.computed + size)))
            budget -= size
        return [pair for pair in found if pair[0] in self._active]

    def _reserve(self, one: Running, length: int) -> bool:
        """Make room, at the cost of those that came later."""
        while not one.runner.reserve(one.id, length):
            others = [other for other in self._active if other.runner is one.runner]
            youngest = others[-1]
            self._preempt(youngest)
            log.info("the cache is full: a sequence of %d tokens waits", len(youngest.tokens))
            if youngest is one:
                return False
        return True

    def _preempt(self, one: Running) -> None:
        """Have a sequence wait, first in line, to be computed again from its first token."""
        self._active.remove(one)
        one.runner.release(one.id)
        one.computed = 0
        self._waiting.appendleft(one)

    def _prefill_images(self, runner: Runner, pair: tuple[Running, Chunk]) -> list[Output]:
        """Compute a prompt with its images. They are the client's: a failure is theirs alone."""
        try:
            return self._forward(runner, [pair])
        except Exception:
            log.exception("a prompt with images could not be computed")
            self.cancel(pair[0].id)
            return [Output(pair[0].id, [], [], error="The model failed on this prompt's images.")]

    def _forward(self, runner: Runner, pairs: list[tuple[Running, Chunk]]) -> list[Output]:
        logits = runner.forward([chunk for _, chunk in pairs])
        outputs: list[Output] = []
        drawing: list[Running] = []
        rows: list[int] = []
        end = 0
        for one, chunk in pairs:
            one.computed += len(chunk.tokens)
            start, end = end, end + chunk.rows
            if chunk.scored:
                outputs.append(_prompt_logprobs(one, chunk, logits[start:end]))
            if not chunk.sampled:
                continue
            if one.submission.sampling.max_tokens == 0:
                self.cancel(one.id)
                outputs.append(Output(one.id, [], [], "length"))
            else:
                drawing.append(one)
                rows.append(end - 1)
        if len(rows) < len(logits):
            logits = logits[rows]
        drawn = draw(logits, [one.draws for one in drawing]) if drawing else []
        for one, found in zip(drawing, drawn, strict=True):
            if isinstance(found, DrawError):
                self.cancel(one.id)
                form = isinstance(found, FormError)
                outputs.append(Output(one.id, [], [], error=str(found), form=form))
            else:
                outputs.append(self._append(one, *found))
        return outputs

    def _append(self, one: Running, token: int, logprob: Logprob | None) -> Output:
        cached, one.cached = one.cached, 0
        if token in one.ends:
            self.cancel(one.id)
            return Output(one.id, [], [], "stop", cached, end=logprob)
        one.tokens.append(token)
        matcher = one.submission.matcher
        finish: Finish | None = None
        if matcher is not None and matcher.consume(token):
            finish = "stop"
        elif (
            one.generated == one.submission.sampling.max_tokens
            or len(one.tokens) >= one.runner.max_length
        ):
            finish = "length"
        if finish:
            self.cancel(one.id)
        elif one.runner.outgrown(one.id, len(one.tokens)):
            self._preempt(one)
        return Output(one.id, [token], [logprob] if logprob else [], finish, cached)


def _chunk(one: Running, end: int) -> Chunk:
    start = one.computed
    return Chunk(one.id, one.tokens[start:end], start, end == len(one.tokens), one.scored)


def _prompt_logprobs(one: Running, chunk: Chunk, logits: "torch.Tensor") -> Output:
    """The log probabilities of the prompt's tokens that come after each of a chunk's."""
    prompt, start = one.submission.prompt, chunk.start
    first, last = max(one.reported, start + 1), min(start + len(logits), len(prompt) - 1)
    rows = logits[first - start - 1 : last - start]
    top = one.submission.sampling.prompt_logprobs or 0
    one.reported = max(one.reported, last + 1)
    return Output(one.id, [], [], prompt=scored(rows, prompt[first : last + 1], top))
