"""Sequences of a scheduler: admission, chunks of the next step, and preemption."""

import logging
from collections.abc import Callable, Sequence

from stoker.models.llm.background import BackgroundShare
from stoker.models.llm.runner import Chunk, Runner
from stoker.models.llm.running import Running
from stoker.models.llm.waiting import WaitingSequences

log = logging.getLogger(__name__)


class ScheduledSequences:
    """Waiting and running sequences of one scheduler."""

    def __init__(self, max_running: int, clock: Callable[[], float]) -> None:
        self.background = BackgroundShare(clock)
        self.active: list[Running] = []
        """Admitted sequences in the order of admission."""
        self.affordable = max_running
        """Number of sequences that the free memory sufficed for. Reset once none is left."""
        self._max_running = max_running
        self._queue = WaitingSequences()

    def __len__(self) -> int:
        return len(self._queue) + len(self.active)

    @property
    def pause_s(self) -> float:
        """Seconds for which background sequences should wait for a live one."""
        if self._queue.has_live or not all(each.is_background for each in self.active):
            return 0.0
        return self.background.pause_s

    def add(self, sequence: Running) -> None:
        if not len(self):
            self.affordable = self._max_running
        self._queue.add(sequence)

    def remove(self, identifier: int) -> None:
        """Removes a sequence and frees its memory. Ignores an unknown one."""
        for sequence in self.active:
            if sequence.id == identifier:
                self.active.remove(sequence)
                sequence.runner.release(identifier)
                return
        self._queue.remove(identifier)

    def admit(self, runner: Runner) -> None:
        """Admits waiting sequences in turn while the cache has room. Live sequences take the room
        of background ones.
        """
        postponed: list[Running] = []
        while self._queue:
            sequence = self._queue.next()
            if sequence.submission.after is not None and self._computing(sequence.submission.after):
                # The sequence waits until the other one has computed their prompt. Later sequences
                # do not wait for that.
                postponed.append(sequence)
                continue
            is_background = sequence.is_background
            if len(self.active) < self.affordable or (not is_background and self._displace()):
                computed = self._admitted(runner, sequence)
                while computed is None and not is_background and self._displace():
                    computed = self._admitted(runner, sequence)
            else:
                computed = None
            if computed is None:
                self._queue.put_back(sequence)
                break
            sequence.computed = computed
            if not sequence.begun:
                sequence.begun, sequence.cached = True, computed
            self.active.append(sequence)
        for sequence in reversed(postponed):
            self._queue.put_back(sequence)

    def _admitted(self, runner: Runner, sequence: Running) -> int | None:
        """Admits a sequence to the runner, if its cache has room: see `Runner.admit`."""
        sequence.runner = runner
        media = sequence.submission.media
        # Runners without adapters need no such parameter.
        added = {"adapter": adapter} if (adapter := sequence.submission.adapter) else {}
        return runner.admit(sequence.id, sequence.tokens, media, fresh=sequence.scored, **added)

    def _displace(self) -> bool:
        """Preempts the youngest background sequence. Returns False if there is none."""
        youngest = next((each for each in reversed(self.active) if each.is_background), None)
        if youngest is not None:
            self.preempt(youngest)
        return youngest is not None

    def _computing(self, identifier: int) -> bool:
        """Returns True if a sequence waits or its prompt is still being computed."""
        return identifier in self._queue or any(
            sequence.id == identifier and sequence.computed < len(sequence.submission.prompt)
            for sequence in self.active
        )

    def chunks(self, budget: int, scored: int) -> list[tuple[Running, Chunk]]:
        """Returns the chunks to compute: drawing sequences first, then prompts in the turns of
        their keys. Background sequences get a limited rest.

        Args:
            budget: maximum number of tokens.
            scored: maximum number of tokens with requested logits.
        """
        live = sorted(
            (sequence for sequence in self.active if not sequence.is_background),
            key=lambda sequence: sequence.rank,
        )
        pairs = self._chunks_of(live, budget, scored)
        background = [sequence for sequence in self.active if sequence.is_background]
        if background:
            live_width = sum(len(chunk.tokens) for _, chunk in pairs)
            room = self.background.room(live_width, budget - live_width)
            background.sort(key=lambda sequence: sequence.rank)
            if live_width:
                # Its images would be computed in this step, too.
                background = [each for each in background if not each.at_images]
            pairs += self._chunks_of(background, room, scored)
        return [pair for pair in pairs if pair[0] in self.active]

    def _chunks_of(
        self, sequences: Sequence[Running], budget: int, scored: int
    ) -> list[tuple[Running, Chunk]]:
        """Returns chunks of sequences in their order, with at most `budget` tokens."""
        pairs: list[tuple[Running, Chunk]] = []
        for sequence in sequences:
            most = min(budget, scored) if sequence.scored else budget
            # The sequence may have been preempted for an earlier sequence.
            if sequence not in self.active or most <= 0:
                continue
            size = sequence.next(most)
            if not self._reserve(sequence, sequence.computed + size):
                continue
            if sequence.scored:
                scored -= size
            if len(sequence.tokens) - sequence.computed > 1:
                self._queue.had_turn(sequence)
            pairs.append((sequence, sequence.chunk(sequence.computed + size)))
            budget -= size
        return pairs

    def _reserve(self, one: Running, length: int) -> bool:
        """Reserves room for a sequence, and preempts the youngest ones if necessary: background
        ones first.
        """
        while not one.runner.reserve(one.id, length):
            peers = [other for other in self.active if other.runner is one.runner]
            youngest = ([other for other in peers if other.is_background] or peers)[-1]
            self.preempt(youngest)
            log.info("KV cache is full: a sequence of %d tokens waits", len(youngest.tokens))
            if youngest is one:
                return False
        return True

    def preempt(self, one: Running) -> None:
        """Moves a sequence to the front of the waiting ones. It is computed again from its first
        token.
        """
        self.active.remove(one)
        one.runner.release(one.id)
        one.computed, one.draft = 0, ()
        self._queue.put_back(one)
