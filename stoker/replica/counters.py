"""How much a replica has done since its start."""

from dataclasses import dataclass, field

from stoker.wire.protocol import Batches


@dataclass(eq=False)
class Counters:
    """Plain numbers, for the heartbeat to read whenever it is due."""

    progress: int = 0
    """Grows with every step of work done."""
    busy_s: float = 0.0
    """Seconds spent in forward passes."""
    batches: Batches = field(default_factory=Batches)
    """The passes that worked for requests; of language models, those that gave them tokens."""

    def passed(self, size: int, seconds: float) -> None:
        """Count a forward pass of so many samples."""
        self.busy_s += seconds
        self.batches.count(size)
