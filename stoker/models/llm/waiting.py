"""Queue of sequences that wait for admission. API keys take turns."""

from collections import deque

from stoker.base.fairness import RoundRobin
from stoker.models.llm.running import Running


class WaitingSequences:
    """Waiting sequences of one scheduler."""

    def __init__(self) -> None:
        self._sequences: deque[Running] = deque()
        self._order = RoundRobin()

    def __len__(self) -> int:
        return len(self._sequences)

    def __contains__(self, identifier: int) -> bool:
        return any(sequence.id == identifier for sequence in self._sequences)

    def add(self, sequence: Running) -> None:
        """Adds a new sequence before those of other keys with a later turn."""
        sequence.turn = self._order.turn_of(sequence.submission.key)
        place = len(self._sequences)
        while place and self._sequences[place - 1].turn > sequence.turn:
            place -= 1
        self._sequences.insert(place, sequence)

    def put_back(self, sequence: Running) -> None:
        """Returns a sequence to the front of the queue."""
        self._sequences.appendleft(sequence)

    def next(self) -> Running:
        """Removes the next sequence and returns it."""
        return self._sequences.popleft()

    def remove(self, identifier: int) -> None:
        """Removes a sequence. Ignores unknown sequences."""
        self._sequences = deque(
            sequence for sequence in self._sequences if sequence.id != identifier
        )

    def had_turn(self, sequence: Running) -> None:
        """Records that a sequence's prompt is computed now. Other keys have the next turn."""
        self._order.current = max(self._order.current, sequence.turn)
