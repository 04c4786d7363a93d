"""Continuous batching: sequences join and leave between forward passes.

Each step draws one token for every sequence with a computed prompt. The rest of the step's budget
goes to prompts, first come first served. Long prompts are computed in pieces, so they never delay
other sequences for long. If the cache is full, the youngest sequence is preempted and computed
again later; its drawn tokens are kept.

Background sequences come last. They join a step with live sequences only if they hardly prolong it,
and are preempted if a live sequence needs their room.
"""

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from stoker.models.engines.shortage import free_unused, is_out_of_memory
from stoker.models.llm.draws import Draws
from stoker.models.llm.errors import DrawError, FormError
from stoker.models.llm.guesses import guessed, may_guess
from stoker.models.llm.interface import Finish, Logprob, Output, Submission
from stoker.models.llm.lookup import Lookup
from stoker.models.llm.runner import Chunk, Runner
from stoker.models.llm.running import Running
from stoker.models.llm.sampling import Drawn, draw_after, rows_of
from stoker.models.llm.scheduled import ScheduledSequences
from stoker.models.llm.speculation import Speculation
from stoker.wire.passes import RecordedPasses

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)

STEP_TOKENS = 256
"""Maximum tokens of a forward pass, unless the runner has its own limit. More is hardly faster on a
CPU, and delays the next token of all sequences.
"""
SCORED_TOKENS = 64
"""Maximum prompt tokens with requested logits in one forward pass. Each takes one float per
vocabulary entry.
"""
MAX_RUNNING = 256
_OUT_OF_MEMORY = (
    "This prompt needs more memory than is free on the model's device. Send a shorter prompt, or "
    "try again later."
)


class Scheduler:
    """`LanguageModel` on top of a `Runner`."""

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
            speculation: decides how many guessed tokens are computed. None disables guesses.
        """
        self._runner = runner
        self._ends = frozenset(ends)
        self._sequences = ScheduledSequences(max_running, clock)
        self._speculation = speculation
        self._clock = clock
        self._is_usable = True
        """False once the device can no longer compute."""

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
        speculation = self._speculation
        return (speculation.drafted, speculation.accepted) if speculation else (0, 0)

    @property
    def alive(self) -> bool:
        return self._is_usable

    @property
    def recorded(self) -> RecordedPasses:
        """Captured steps of the runner."""
        return getattr(self._runner, "recorded", RecordedPasses())

    @property
    def children(self) -> Sequence[int]:
        return ()

    def enter_thread(self) -> None:
        self._runner.enter_thread()

    def wake(self) -> None:
        """Does nothing, because a forward pass ends by itself."""

    @property
    def running(self) -> int:
        return len(self._sequences)

    @property
    def pause_s(self) -> float:
        """Seconds for which the next step should wait for a live sequence. 0 if one is there."""
        return self._sequences.pause_s

    @property
    def at_work(self) -> bool:
        return self.running > 0

    def rest(self) -> bool:
        # Runners of other packages may lack it.
        prepare: Callable[[], bool] | None = getattr(self._runner, "rest", None)
        return prepare is not None and prepare()

    def adopt(self, runner: Runner) -> None:
        """Switches to another runner of the same model. Started sequences finish on the old one."""
        self._runner = runner
        self._sequences.background.forget()
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
        sequence = Running(submission, draws, ends, list(submission.prompt), self._runner)
        if self._speculation:
            sequence.lookup = Lookup(sequence.tokens, len(submission.prompt), ends)
        self._sequences.add(sequence)

    def cancel(self, identifier: int) -> None:
        self._sequences.remove(identifier)

    def step(self) -> list[Output]:
        self._sequences.admit(self._runner)
        chunks = self._sequences.chunks(self._step_tokens, SCORED_TOKENS)
        speculation = self._speculation
        if speculation and not may_guess(self._runner, chunks):
            speculation = None
        if speculation:
            chunks = guessed(speculation, chunks, self._step_tokens)
        started = self._clock()
        outputs: list[Output] = []
        for runner in {id(sequence.runner): sequence.runner for sequence, _ in chunks}.values():
            pairs = [pair for pair in chunks if pair[0].runner is runner]
            if texts := [pair for pair in pairs if not pair[0].at_images]:
                outputs += self._forward(runner, texts)
            for pair in pairs:
                if pair[0].at_images:
                    outputs += self._prefill_images(runner, pair)
        seconds = self._clock() - started
        width = sum(len(chunk.tokens) for _, chunk in chunks)
        if speculation:
            speculation.passed(len(chunks), width, seconds)
        live = sum(len(chunk.tokens) for sequence, chunk in chunks if not sequence.is_background)
        if chunks:
            self._sequences.background.passed(width, live, seconds)
        return outputs

    def abandon(self, why: str) -> list[Output]:
        outputs = [Output(sequence.id, [], [], error=why) for sequence in self._sequences.active]
        for output in outputs:
            self.cancel(output.id)
        # Runners of other packages may lack it.
        is_usable: Callable[[], bool] | None = getattr(self._runner, "is_usable", None)
        self._is_usable = is_usable is None or is_usable()
        return outputs

    @property
    def _step_tokens(self) -> int:
        # Runners of other packages may lack it.
        return getattr(self._runner, "step_tokens", None) or STEP_TOKENS

    def _prefill_images(self, runner: Runner, pair: tuple[Running, Chunk]) -> list[Output]:
        """Computes a prompt with its images. They come from the client, so a failure affects only
        this sequence.
        """
        try:
            return self._forward(runner, [pair])
        except Exception:
            log.exception("prompt with images could not be computed")
            self.cancel(pair[0].id)
            return [Output(pair[0].id, [], [], error="The model failed on this prompt's images.")]

    def _forward(self, runner: Runner, pairs: list[tuple[Running, Chunk]]) -> list[Output]:
        logits = self._logits(runner, pairs)
        if logits is None:
            return self._make_room(runner)
        outputs: list[Output] = []
        drawing: list[tuple[Running, int]] = []
        end = 0
        for sequence, chunk in pairs:
            sequence.computed = chunk.certain
            start, end = end, end + chunk.rows
            if chunk.scored:
                outputs.append(sequence.told(chunk, logits[start:end]))
            if not chunk.sampled:
                continue
            if sequence.submission.sampling.max_tokens == 0:
                self.cancel(sequence.id)
                outputs.append(Output(sequence.id, [], [], "length"))
            else:
                drawing.append((sequence, end - 1 - chunk.draft))
        place = 0
        while drawing:
            drawn, drawing = self._draw(logits, drawing, place)
            outputs += drawn
            place += 1
        return outputs

    def _logits(self, runner: Runner, pairs: list[tuple[Running, Chunk]]) -> "torch.Tensor | None":
        """Returns the logits of a forward pass. None if memory ran out."""
        try:
            return runner.forward([chunk for _, chunk in pairs])
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            log.exception("memory ran out in a pass over %d sequences", len(pairs))
            return None

    def _make_room(self, runner: Runner) -> list[Output]:
        """Preempts a runner's sequences after a pass ran out of memory, and lets only the older
        half of them run. Fails a sequence that ran alone.
        """
        peers = [sequence for sequence in self._sequences.active if sequence.runner is runner]
        # The failed pass may have changed a part of any sequence's keys and values.
        for sequence in reversed(peers):
            self._sequences.preempt(sequence)
        free_unused()
        if len(peers) > 1:
            self._sequences.affordable = len(peers) // 2
            return []
        self.cancel(peers[0].id)
        return [Output(peers[0].id, [], [], error=_OUT_OF_MEMORY)]

    def _draw(
        self, logits: "torch.Tensor", drawing: list[tuple[Running, int]], place: int
    ) -> tuple[list[Output], list[tuple[Running, int]]]:
        """Draws a token for each sequence. Also returns the sequences that draw another one,
        because their guess was right.

        Each token is drawn from the model's own distribution with the sequence's own random number,
        independent of the guesses. A guess only decides if the logits after it are usable. If the
        distribution does not depend on earlier tokens, all tokens up to the first wrong guess are
        drawn at once.

        Args:
            drawing: each sequence with the row of logits for its first token.
            place: index of the guessed token for this draw.
        """
        drafts = [sequence.draft if sequence.draws.independent else () for sequence, _ in drawing]
        rows = [
            first + place + number
            for (_, first), draft in zip(drawing, drafts, strict=True)
            for number in range(len(draft) + 1)
        ]
        draws = [sequence.draws for sequence, _ in drawing]
        outputs: list[Output] = []
        going: list[tuple[Running, int]] = []
        for (sequence, first), results in zip(
            drawing, draw_after(rows_of(logits, rows), draws, drafts), strict=True
        ):
            for number, result in enumerate(results, start=place):
                outputs.append(self._take(sequence, result, number))
                if not sequence.draft:
                    break
            else:
                going.append((sequence, first))
        return outputs, going

    def _take(self, one: Running, result: Drawn | DrawError, place: int) -> Output:
        """Adds a drawn token to its sequence. Drops the guesses unless the token equals its guess
        and the sequence goes on.
        """
        if isinstance(result, DrawError):
            self.cancel(one.id)
            one.draft = ()
            form = isinstance(result, FormError)
            return Output(one.id, [], [], error=str(result), form=form)
        right = place < len(one.draft) and one.draft[place] == result[0]
        one.computed += right
        if self._speculation:
            self._speculation.accepted += right
        output = self._append(one, *result)
        if not (right and one in self._sequences.active):
            self._settle(one)
        return output

    def _settle(self, one: Running) -> None:
        """Makes the runner drop the wrong guesses."""
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
        matcher, most = one.submission.matcher, one.submission.sampling.max_tokens
        finish: Finish | None = None
        if matcher is not None and matcher.consume(token):
            finish = "stop"
        elif one.generated == most or len(one.tokens) >= one.runner.max_length:
            finish = "length"
        if finish:
            self._settle(one)
            self.cancel(one.id)
        elif one.runner.outgrown(one.id, len(one.tokens)):
            self._sequences.preempt(one)
        return Output(one.id, [token], [logprob] if logprob else [], finish, cached)
