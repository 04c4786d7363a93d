"""Counts of a replica's forward passes."""

from bisect import bisect_left

import msgspec

BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Largest batch size of each bucket that counts forward passes. An additional bucket counts larger
batches.
"""


class Batches(msgspec.Struct):
    """Forward passes so far, by the number of samples or sequences that shared them."""

    passes: list[int] = msgspec.field(default_factory=lambda: [0] * (len(BATCH_SIZES) + 1))
    samples: int = 0
    """Number of samples of all passes together."""
    drafted: int = 0
    """Guessed tokens of language models that these passes computed."""
    accepted: int = 0
    """Number of guessed tokens that were accepted."""

    def count(self, size: int) -> None:
        self.passes[bisect_left(BATCH_SIZES, size)] += 1
        self.samples += size

    def __add__(self, other: "Batches") -> "Batches":
        passes = [count + two for count, two in zip(self.passes, other.passes, strict=True)]
        return Batches(
            passes,
            self.samples + other.samples,
            self.drafted + other.drafted,
            self.accepted + other.accepted,
        )


MOST_LOST = 2
"""Maximum number of passes that may end a replica while they are recorded. After that, no passes of
the model are recorded.
"""


class RecordedPasses(msgspec.Struct, frozen=True):
    """CUDA graphs of a model."""

    count: int | None = None
    """None if passes are not recorded on the model's device."""
    problem: str = ""
    """Reason that no more passes are recorded. Empty if they are."""
