"""Queue of sequences that wait for admission. API keys take turns."""

from collections import deque
from itertools import chain

from stoker.base.fairness import MOST_OVERTAKING, RoundRobin, Tier
from stoker.models.llm.running import Running


class _WaitingLine:
    """Waiting sequences in the turns of their keys."""

    def __init__(self) -> None:
        self.sequences: deque[Running] = deque()
        self.order = RoundRobin()

    def add(self, sequence: Running) -> None:
        submission = sequence.submission
        turn = self.order.turn_of(submission.key)
        sequence.turn = turn
        if submission.tier is Tier.PRIORITY:
            sequence.head_start = MOST_OVERTAKING
            sequence.turn -= MOST_OVERTAKING
        place = len(self.sequences)
        while place and self.sequences[place - 1].turn > sequence.turn:
            place -= 1
        self.sequences.insert(place, sequence)


class WaitingSequences:
    """Waiting sequences of one scheduler. Background ones come last. Those of priority come before
    those of the next `MOST_OVERTAKING` turns.
    """

    def __init__(self) -> None:
        self._live, self._background = _WaitingLine(), _WaitingLine()

    def __len__(self) -> int:
        return len(self._live.sequences) + len(self._background.sequences)

    @property
    def has_live(self) -> bool:
        return bool(self._live.sequences)

    def __contains__(self, identifier: int) -> bool:
        waiting = chain(self._live.sequences, self._background.sequences)
        return any(sequence.id == identifier for sequence in waiting)

    def add(self, sequence: Running) -> None:
        """Adds a new sequence before those of other keys with a later turn."""
        self._line(sequence).add(sequence)

    def put_back(self, sequence: Running) -> None:
        """Returns a sequence to the front of the live or of the background sequences."""
        self._line(sequence).sequences.appendleft(sequence)

    def next(self) -> Running:
        """Removes the next sequence and returns it."""
        return (self._live.sequences or self._background.sequences).popleft()

    def remove(self, identifier: int) -> None:
        """Removes a sequence. Ignores unknown sequences."""
        for line in (self._live, self._background):
            line.sequences = deque(
                sequence for sequence in line.sequences if sequence.id != identifier
            )

    def had_turn(self, sequence: Running) -> None:
        """Records that a sequence's prompt is computed now. Other keys have the next turn."""
        order = self._line(sequence).order
        order.current = max(order.current, sequence.turn + sequence.head_start)

    def _line(self, sequence: Running) -> _WaitingLine:
        return self._background if sequence.is_background else self._live
