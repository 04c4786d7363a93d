"""Continuous batching: sequences join and leave between forward passes.

Every step gives each sequence that has its prompt computed one token, and spends what is left of
the step's budget on prompts, first come first served; long prompts are computed in pieces, so they
never hold the others up for long. Where the cache is full, the youngest sequence gives its place
back and is computed again later: what was drawn is kept.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from stoker.base.fairness import RoundRobin
from stoker.models.llm.errors import DrawError, FormError
from stoker.models.llm.interface import Finish, Logprob, Output, Submission
from stoker.models.llm.lookup import Lookup
from stoker.models.llm.runner import Chunk, Runner
from stoker.models.llm.running import Running
from stoker.models.llm.sampling import Draws, draw
from stoker.models.llm.speculation import MOST_SEQUENCES, Speculation

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


class Scheduler:
    """A `LanguageModel` of anything that can compute chunks of sequences."""

    def __init__(
        self,
        runner: Runner,
        ends: Iterable[int],
        *,
        max_running: int = MAX_RUNNING,
        speculation: Speculation | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """
        Args:
            ends: tokens by which the model ends its answer.
            speculation: says how many guessed tokens are computed; None: there are none.
        """
        self._runner = runner
        self._ends = frozenset(ends)
        self._max_running = max_running
        self._waiting: deque[Running] = deque()
        self._active: list[Running] = []
        """In the order of admission."""
        self._order = RoundRobin()
        self._speculation = speculation
        self._clock = clock

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
    def speculated(self) -> tuple[int, int]:
        one = self._speculation
        return (one.drafted, one.accepted) if one else (0, 0)

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

    @property
    def at_work(self) -> bool:
        return self.running > 0

    def adopt(self, runner: Runner) -> None:
        """Go on with another runner of the same model; what has begun ends where it is."""
        self._runner = runner
        if self._speculation:
            self._speculation.forget()

    def submit(self, submission: Submission) -> None:
        sampling = submission.sampling
        ends = frozenset(sampling.stop_token_ids)
        if not sampling.ignore_eos:
            ends |= self._ends
        draws = Draws(
            sampling,
            submission.prompt,
            ends,
            self._runner.vocabulary,
            matcher=submission.matcher,
            rules=submission.rules,
        )
        one = Running(submission, draws, ends, list(submission.prompt), self._runner)
        if self._speculation:
            one.lookup = Lookup(one.tokens, len(submission.prompt), ends)
        one.turn = self._order.turn_of(submission.key)
        # Before those of other keys whose turn comes later.
        place = len(self._waiting)
        while place and self._waiting[place - 1].turn > one.turn:
            place -= 1
        self._waiting.insert(place, one)

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
        speculation = self._speculation
        if speculation and not self._may_guess(chunks):
            speculation = None
        if speculation:
            chunks = self._guessed(speculation, chunks)
        started = self._clock()
        outputs: list[Output] = []
        for runner in {id(one.runner): one.runner for one, _ in chunks}.values():
            own = [pair for pair in chunks if pair[0].runner is runner]
            if texts := [pair for pair in own if not pair[0].at_images]:
                outputs += self._forward(runner, texts)
            for pair in own:
                if pair[0].at_images:
                    outputs += self._prefill_images(runner, pair)
        if speculation:
            width = sum(len(chunk.tokens) for _, chunk in chunks)
            speculation.passed(len(chunks), width, self._clock() - started)
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
            # Runners without adapters need not know of any.
            added = {"adapter": adapter} if (adapter := one.submission.adapter) else {}
            computed = one.runner.admit(one.id, one.tokens, media, anew=one.scored, **added)
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
        """What to compute: those that draw a token first, then prompts, as keys take turns."""
        budget, scored = STEP_TOKENS, SCORED_TOKENS
        found: list[tuple[Running, Chunk]] = []
        for one in sorted(self._active, key=lambda one: one.rank):
            most = min(budget, scored) if one.scored else budget
            # It may have been preempted for one before it.
            if one not in self._active or most <= 0:
                continue
            size = one.next(most)
            if not self._reserve(one, one.computed + size):
                continue
            if one.scored:
                scored -= size
            if len(one.tokens) - one.computed > 1:
                self._order.current = max(self._order.current, one.turn)
            found.append((one, one.chunk(one.computed + size)))
            budget -= size
        return [pair for pair in found if pair[0] in self._active]

    def _reserve(self, one: Running, length: int) -> bool:
        """Make room, at the cost of those that came later."""
        while not one.runner.reserve(one.id, length):
            others = [other for other in self._active if other.runner is one.runner]
            youngest = others[-1]
            self._preempt(youngest)
            log.info("KV cache is full: a sequence of %d tokens waits", len(youngest.tokens))
            if youngest is one:
                return False
        return True

    def _preempt(self, one: Running) -> None:
        """Have a sequence wait, first in line, to be computed again from its first token."""
        self._active.remove(one)
        one.runner.release(one.id)
        one.computed, one.draft = 0, ()
        self._waiting.appendleft(one)

    def _may_guess(self, pairs: list[tuple[Running, Chunk]]) -> bool:
        """Whether all that is to be computed draws: a pass with prompts has enough to do."""
        if not self._runner.can_retract or not 0 < len(pairs) <= MOST_SEQUENCES:
            return False
        return all(
            len(chunk.tokens) == 1
            and chunk.start > 0
            and chunk.sampled
            and not chunk.scored
            and one.runner is self._runner
            for one, chunk in pairs
        )

    def _guessed(
        self, speculation: Speculation, pairs: list[tuple[Running, Chunk]]
    ) -> list[tuple[Running, Chunk]]:
        """The same with guesses, as many as may pay. They cost nobody else's place."""
        guesses = {one.id: one.guess() for one, _ in pairs}
        chances = {one.id: one.chances(len(guesses[one.id])) for one, _ in pairs}
        counts = speculation.chosen(chances, len(pairs), STEP_TOKENS - len(pairs))
        if not counts:
            return pairs
        found: list[tuple[Running, Chunk]] = []
        for one, chunk in pairs:
            draft = guesses[one.id][: counts[one.id]]
            if draft and one.runner.reserve(one.id, chunk.certain + len(draft)):
                one.draft = draft
                tokens = [*chunk.tokens, *draft]
                chunk = replace(chunk, tokens=tokens, draft=len(draft))  # noqa: PLW2901
                speculation.drafted += len(draft)
            found.append((one, chunk))
        return found

    def _prefill_images(self, runner: Runner, pair: tuple[Running, Chunk]) -> list[Output]:
        """Compute a prompt with its images. They are the client's: a failure is theirs alone."""
        try:
            return self._forward(runner, [pair])
        except Exception:
            log.exception("prompt with images could not be computed")
            self.cancel(pair[0].id)
            return [Output(pair[0].id, [], [], error="The model failed on this prompt's images.")]

    def _forward(self, runner: Runner, pairs: list[tuple[Running, Chunk]]) -> list[Output]:
        logits = runner.forward([chunk for _, chunk in pairs])
        outputs: list[Output] = []
        drawing: list[tuple[Running, int]] = []
        end = 0
        for one, chunk in pairs:
            one.computed = chunk.certain
            start, end = end, end + chunk.rows
            if chunk.scored:
                outputs.append(one.told(chunk, logits[start:end]))
            if not chunk.sampled:
                continue
            if one.submission.sampling.max_tokens == 0:
                self.cancel(one.id)
                outputs.append(Output(one.id, [], [], "length"))
            else:
                drawing.append((one, end - 1 - chunk.draft))
        place = 0
        while drawing:
            drawn, drawing = self._draw(logits, drawing, place)
            outputs += drawn
            place += 1
        return outputs

    def _draw(
        self, logits: "torch.Tensor", drawing: list[tuple[Running, int]], place: int
    ) -> tuple[list[Output], list[tuple[Running, int]]]:
        """A token of each sequence, and those that draw another: the guess of it was right.

        Each is drawn from the model's own distribution by the sequence's own number, whatever was
        guessed: a guess only decides whether the logits after it are of use.

        Args:
            drawing: each with the row of logits that its first token is drawn from.
            place: of the token that the guess has for this draw.
        """
        rows = [first + place for _, first in drawing]
        drawn = draw(_rows(logits, rows), [one.draws for one, _ in drawing])
        outputs: list[Output] = []
        going: list[tuple[Running, int]] = []
        for (one, first), found in zip(drawing, drawn, strict=True):
            if isinstance(found, DrawError):
                self.cancel(one.id)
                form = isinstance(found, FormError)
                outputs.append(Output(one.id, [], [], error=str(found), form=form))
                continue
            right = place < len(one.draft) and one.draft[place] == found[0]
            one.computed += right
            if self._speculation:
                self._speculation.accepted += right
            outputs.append(self._append(one, *found))
            if right and one.draft and one in self._active:
                going.append((one, first))
            else:
                self._settle(one)
        return outputs, going

    def _settle(self, one: Running) -> None:
        """Have the runner drop what was guessed wrong."""
        if one.draft:
            one.runner.retract(one.id, one.computed)
            one.draft = ()

    def _append(self, one: Running, token: int, logprob: Logprob | None) -> Output:
        cached, one.cached = one.cached, 0
        if token in one.ends:
            self._settle(one)
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
            self._settle(one)
            self.cancel(one.id)
        elif one.runner.outgrown(one.id, len(one.tokens)):
            self._preempt(one)
        return Output(one.id, [token], [logprob] if logprob else [], finish, cached)


def _rows(logits: "torch.Tensor", rows: list[int]) -> "torch.Tensor":
    """Copied only where it has to be: each is as wide as the vocabulary."""
    start, end = rows[0], rows[-1] + 1
    return logits[start:end] if end - start == len(rows) else logits[rows]
