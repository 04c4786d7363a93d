"""Two answers to the same request, as sent to the comparing process. Imports little."""

import msgspec

from stoker.workloads.evaluation.replay.comparison import Comparison
from stoker.workloads.evaluation.replay.streams import folded


class Pair(msgspec.Struct, frozen=True):
    reference: bytes
    found: bytes
    is_streamed: bool = False
    """True if both answers are server-sent events."""

    @property
    def size(self) -> int:
        """Size of both answers in bytes."""
        return len(self.reference) + len(self.found)


def compared(pair: Pair) -> Comparison:
    """Compares a pair. Raises `RecursionError` for an answer that is nested too deep."""
    comparison = Comparison()
    if pair.is_streamed:
        comparison.add(folded(pair.reference), folded(pair.found))
    else:
        comparison.add(pair.reference, pair.found)
    return comparison
