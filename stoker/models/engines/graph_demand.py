"""Counts the batches of each bucket, to decide which passes are worth recording."""

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field

from stoker.models.engines.buckets import Batch, ShapeBucket

LEAST_USES = 3
"""Number of batches of a bucket after which its pass is worth recording in idle time."""
RECORDING_PASSES = 12
"""Number of passes whose time a recording takes."""
MOST_EXAMPLES = 8
"""Maximum number of batches that are kept as examples to record passes with."""
MOST_BUCKETS = 512
"""Maximum number of buckets whose uses are counted."""


@dataclass(eq=False)
class GraphDemand:
    """Number of usual passes by bucket, and the share of time that recordings saved."""

    _uses: Counter[ShapeBucket] = field(default_factory=Counter[ShapeBucket])
    """Number of batches that ran as usual, by bucket."""
    _examples: dict[ShapeBucket, Batch] = field(default_factory=dict[ShapeBucket, Batch])
    """Latest batches of buckets that are worth recording."""
    _gains: dict[ShapeBucket, float] = field(default_factory=dict[ShapeBucket, float])
    """Share of a usual pass's time that its recording saves, as measured."""

    def count(self, bucket: ShapeBucket, batch: Batch) -> None:
        """Counts a batch that ran as usual."""
        if len(self._uses) == MOST_BUCKETS and bucket not in self._uses:
            self._uses = Counter(dict(self._uses.most_common(MOST_BUCKETS // 2)))
        self._uses[bucket] += 1
        if self._uses[bucket] >= LEAST_USES:
            self._examples[bucket] = batch
        if len(self._examples) > MOST_EXAMPLES:
            del self._examples[min(self._examples, key=self._order)]

    @property
    def best(self) -> ShapeBucket | None:
        """Bucket whose recording would have saved the most time. None if no pass is worth
        recording.
        """
        return max(self._examples, key=self._order, default=None)

    def example(self, bucket: ShapeBucket) -> Batch:
        return self._examples[bucket]

    def pays(self, bucket: ShapeBucket) -> bool:
        """True if a recording would have saved more time so far than it takes.

        Even if the bucket is never used again, this rule at most doubles the lost time.
        """
        return self._uses[bucket] * self._gain(bucket) >= RECORDING_PASSES

    def measured(self, bucket: ShapeBucket, gain: float) -> None:
        """Stores the share of time that a recording saves. Negative if it is slower."""
        if len(self._gains) < MOST_BUCKETS:
            self._gains[bucket] = gain

    def drop(self, bucket: ShapeBucket) -> None:
        """Forgets the uses of a bucket."""
        self._uses.pop(bucket, None)
        self._examples.pop(bucket, None)

    def drop_form(self, form: Hashable) -> None:
        """Forgets the examples of all buckets of one form."""
        for bucket in [bucket for bucket in self._examples if bucket.form == form]:
            self.drop(bucket)

    def clear(self) -> None:
        """Forgets all uses."""
        self._uses.clear()
        self._examples.clear()

    def _order(self, bucket: ShapeBucket) -> tuple[float, int]:
        uses = self._uses[bucket]
        return uses * self._gain(bucket), uses

    def _gain(self, bucket: ShapeBucket) -> float:
        """Returns the expected share of time that a recording saves: the measured share of the most
        similar bucket, or 1 if there is none.
        """
        similar = [
            (_ratio(bucket.elements, other.elements), gain)
            for other, gain in self._gains.items()
            if other.form == bucket.form
        ]
        return max(0.0, min(similar)[1]) if similar else 1.0


def _ratio(size: int, other: int) -> float:
    return max(size, other) / max(1, min(size, other))
