"""History of one deployment for up to a day, in rings of fixed size.

The current step is a bucket of plain numbers. A finished step becomes a row of floats. Its
latencies are reduced to three quantiles, so that a busy day uses no more memory than a quiet one.
"""

import math
from array import array
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from stoker.runtime.listening import CANCELLED, OK, Served

FINE_S, FINE_KEPT = 5, 720
"""Length of a fine step in seconds, and number of steps kept: an hour."""
COARSE_S, COARSE_KEPT = 60, 1440
"""Length of a coarse step in seconds, and number of steps kept: a day."""
RECENT = 60 // FINE_S
"""Number of finished buckets that are kept in full, for quantiles of the last minute."""
RATE_STEPS = 2
"""Number of these buckets that a rate covers, in addition to the current one."""

COLUMNS = (
    "ok", "client_error", "server_error", "tokens", "p50", "p90", "p99", "queue", "batch_size",
    "replicas", "memory_bytes",
)  # fmt: skip
QUANTILES = (0.5, 0.9, 0.99)

_LEAST_S = 1e-4
_PER_DOUBLING = 8
"""Number of latency bins per factor of two. Latencies are accurate to 2^(1/16): 4.4 percent."""
_SCALE = _PER_DOUBLING / math.log(2)
_TOP = 191
"""Index of the last bin, at 1,600 s. Longer calls are all counted in it."""
_NONE = float("nan")

_log = math.log


def place_of(seconds: float) -> int:
    """Returns the index of the bin for a latency."""
    return min(_TOP, int(_log(seconds / _LEAST_S) * _SCALE)) if seconds > _LEAST_S else 0


def quantile(places: Mapping[int, int], share: float) -> float | None:
    """Returns a quantile of binned latencies in milliseconds. None if no latencies are counted."""
    rank = math.ceil(share * sum(places.values()))
    for place in sorted(places):
        rank -= places[place]
        if rank <= 0:
            return _LEAST_S * 2 ** ((place + 0.5) / _PER_DOUBLING) * 1000
    return None


@dataclass(slots=True, eq=False)
class TimeBucket:
    """Counts of the current step or of one that has just ended."""

    slot: int
    """Number of whole steps since 1970."""
    ok: int = 0
    client_error: int = 0
    server_error: int = 0
    cancelled: int = 0
    tokens: int = 0
    places: dict[int, int] = field(default_factory=dict[int, int])
    queue: int | None = None
    replicas: int | None = None
    memory_bytes: int | None = None
    """Maximum observed value, like `queue` and `replicas`. None if the step was never observed."""
    passes: int = 0
    samples: int = 0

    @property
    def calls(self) -> int:
        return self.ok + self.client_error + self.server_error + self.cancelled

    def add(self, other: "TimeBucket") -> None:
        """Adds the counts of a shorter step within this one."""
        self.ok += other.ok
        self.client_error += other.client_error
        self.server_error += other.server_error
        self.cancelled += other.cancelled
        self.tokens += other.tokens
        self.passes += other.passes
        self.samples += other.samples
        merge(self.places, other.places)
        if other.queue is not None:
            self.see(other.queue, other.replicas or 0, other.memory_bytes or 0)

    def see(self, queue: int, replicas: int, memory_bytes: int) -> None:
        self.queue = max(self.queue or 0, queue)
        self.replicas = max(self.replicas or 0, replicas)
        self.memory_bytes = max(self.memory_bytes or 0, memory_bytes)

    def values(self) -> tuple[float | None, ...]:
        """Returns the values in the order of `COLUMNS`."""
        # A cancelled call was neither served nor rejected by the server.
        client_error = self.client_error + self.cancelled
        batch = self.samples / self.passes if self.passes else None
        quantiles = (quantile(self.places, share) for share in QUANTILES)
        counted = (self.ok, client_error, self.server_error, self.tokens)
        return (
            *counted,
            *quantiles,
            self.queue,
            batch,
            self.replicas,
            self.memory_bytes,
        )


class Ring:
    """The last steps of one length. Each uses 48 bytes, independent of its load."""

    __slots__ = ("_kept", "_slots", "_values")

    def __init__(self, kept: int) -> None:
        self._kept = kept
        self._slots = array("q", [-1]) * kept
        self._values = array("f", [_NONE]) * (kept * len(COLUMNS))

    def put(self, bucket: TimeBucket) -> None:
        at = bucket.slot % self._kept
        self._slots[at] = bucket.slot
        values = [_NONE if value is None else value for value in bucket.values()]
        self._values[at * len(COLUMNS) : (at + 1) * len(COLUMNS)] = array("f", values)

    def get(self, slot: int) -> Sequence[float] | None:
        """Returns a step's values in the order of `COLUMNS`, with NaN for missing values. None if
        the step had no activity.
        """
        at = slot % self._kept
        if self._slots[at] != slot:
            return None
        return self._values[at * len(COLUMNS) : (at + 1) * len(COLUMNS)]


class Series:
    """History of one deployment. `now` is unix seconds. If the clock goes back, calls count in the
    current step.
    """

    __slots__ = ("_coarse", "_coarse_ring", "_fine", "_fine_ring", "_recent", "used_at")

    def __init__(self, now: float) -> None:
        self._fine = TimeBucket(int(now) // FINE_S)
        self._coarse = TimeBucket(int(now) // COARSE_S)
        self._fine_ring = Ring(FINE_KEPT)
        self._coarse_ring = Ring(COARSE_KEPT)
        self._recent: deque[TimeBucket] = deque(maxlen=RECENT)
        self.used_at = now

    def add(self, call: Served, now: float) -> None:
        """Counts a finished call."""
        bucket = self._at(now)
        if call.outcome == OK:
            bucket.ok += 1
        elif call.outcome == CANCELLED:
            bucket.cancelled += 1
        elif 400 <= call.status < 500:
            bucket.client_error += 1
        else:
            bucket.server_error += 1
        if call.seconds:
            # Calls that never reached a replica would look like the fastest ones.
            place = place_of(call.waited_s + call.seconds)
            bucket.places[place] = bucket.places.get(place, 0) + 1
        if counts := call.counts:
            bucket.tokens += counts.get("input_tokens", 0) + counts.get("output_tokens", 0)
        self.used_at = now

    def see(
        self, now: float, *, queue: int, replicas: int, memory_bytes: int, passes: int, samples: int
    ) -> None:
        """Records an observation. `passes` and `samples` are the counts since the previous one."""
        bucket = self._at(now)
        bucket.see(queue, replicas, memory_bytes)
        bucket.passes += passes
        bucket.samples += samples

    def recent(self, now: float, steps: int) -> Iterable[TimeBucket]:
        """Returns the current bucket and those of the `steps` steps before it."""
        bucket = self._at(now)
        first = bucket.slot - steps
        return [*(earlier for earlier in self._recent if earlier.slot >= first), bucket]

    def rows(self, now: float, step_s: int, count: int) -> tuple[int, list[Sequence[float] | None]]:
        """Returns the start of the first step and the values of the last `count` steps, including
        the current one.
        """
        fine = self._at(now)
        going_on, ring = fine, self._fine_ring
        if step_s != FINE_S:
            ring, going_on = self._coarse_ring, TimeBucket(self._coarse.slot)
            going_on.add(self._coarse)
            if fine.slot * FINE_S // COARSE_S == going_on.slot:
                going_on.add(fine)
        last = int(now) // step_s
        current = [_NONE if value is None else float(value) for value in going_on.values()]
        is_empty = not going_on.calls and going_on.queue is None
        rows = [
            (None if is_empty else current) if slot == going_on.slot else ring.get(slot)
            for slot in range(last - count + 1, last + 1)
        ]
        return (last - count + 1) * step_s, rows

    def _at(self, now: float) -> TimeBucket:
        slot = int(now) // FINE_S
        if slot > self._fine.slot:
            self._close(slot)
        return self._fine

    def _close(self, slot: int) -> None:
        over = self._fine
        if over.calls or over.queue is not None:
            self._fine_ring.put(over)
            self._recent.append(over)
            self._to_coarse(over.slot * FINE_S // COARSE_S)
            self._coarse.add(over)
        self._to_coarse(slot * FINE_S // COARSE_S)
        self._fine = TimeBucket(slot)

    def _to_coarse(self, slot: int) -> None:
        if slot <= self._coarse.slot:
            return
        if self._coarse.calls or self._coarse.queue is not None:
            self._coarse_ring.put(self._coarse)
        self._coarse = TimeBucket(slot)


def merge(places: dict[int, int], others: Mapping[int, int]) -> None:
    for place, count in others.items():
        places[place] = places.get(place, 0) + count
