"""Decides how many guessed tokens a forward pass computes in addition to the certain ones.

A pass that is limited by reading the model's weights computes a few more tokens at almost no cost.
A pass with much computation does not. This depends on the model, its engine, the machine and the
number of sequences, so the times of passes are measured. The number of guesses is chosen for the
highest expected tokens per second, as in https://arxiv.org/abs/2406.14066. It is zero if guesses
are seldom right.
"""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Mapping, Sequence

MOST = 15
"""Maximum guessed tokens of a sequence in a pass."""
MOST_SEQUENCES = 64
"""Maximum number of sequences with guesses. With more, their tokens are enough work for any
pass.
"""
GAIN = 1.1
"""Minimum ratio of the expected rate with guesses to the rate without. Measured times are
inexact.
"""
UNLIKELY = 0.1
"""Minimum chance of a guessed token. Less likely tokens are not computed."""
GROWTH = 0.02
"""Assumed relative increase of the time per additional token, for a pass wider than any measured
one. It is small so that wider passes are tried.
"""
RISES, FALLS = 0.2, 0.5
"""Weight of a longer and of a shorter measured time in the update. A longer one, as on a busy
machine, counts less.
"""
PATIENCE, MOST_PATIENCE = 32, 1024
"""Initial and maximum number of passes with likely but unprofitable guesses until these are tried
again. The machine may have been busy with other work.
"""


class PassDurations:
    """Duration of passes by the number of tokens that they compute."""

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}
        self._seen: set[int] = set()
        self._widths: list[int] = []

    def note(self, width: int, seconds: float) -> None:
        seconds = max(seconds, 1e-9)
        if width not in self._seen:
            # The first pass of a shape may compile kernels for it.
            self._seen.add(width)
            return
        known = self._seconds.get(width)
        if known is None:
            insort(self._widths, width)
            self._seconds[width] = seconds
            return
        seconds = min(seconds, 2 * known)
        self._seconds[width] = known + (FALLS if seconds < known else RISES) * (seconds - known)

    def known(self, width: int) -> bool:
        return width in self._seconds

    def of(self, width: int) -> float:
        """Returns the seconds of a pass: measured, or interpolated between measured widths."""
        if (known := self._seconds.get(width)) is not None:
            return known
        place = bisect_left(self._widths, width)
        below = self._widths[max(place - 1, 0)]
        if place in (0, len(self._widths)):
            return self._seconds[below] * (1 + GROWTH * max(width - below, 0))
        above = self._widths[place]
        share = (width - below) / (above - below)
        return self._seconds[below] * (1 - share) + self._seconds[above] * share


class Speculation:
    """Speculation of one model. It has no clock; callers pass the times."""

    def __init__(self) -> None:
        self._paces: dict[int, PassDurations] = {}
        """Maps the number of sequences in a pass to its durations."""
        self._held = 0
        """Number of passes that had likely guesses and did not compute them."""
        self._patience = PATIENCE
        self.drafted = 0
        """Number of guessed tokens that were computed."""
        self.accepted = 0
        """Number of guessed tokens that were drawn."""

    def forget(self) -> None:
        """Deletes the times of a runner that is no longer used."""
        self._paces.clear()
        self._held, self._patience = 0, PATIENCE

    def passed(self, sequences: int, width: int, seconds: float) -> None:
        """Records the time of a pass with `sequences` drawing sequences and `width` tokens."""
        self._paces.setdefault(sequences, PassDurations()).note(width, seconds)

    def chosen(
        self, guesses: Mapping[int, Sequence[float]], sequences: int, room: int
    ) -> Counter[int]:
        """Returns how many guessed tokens to compute, by sequence.

        Args:
            guesses: maps a sequence to the chance of each token that it and all before it are
                right.
            sequences: number of sequences that draw in this pass, with or without guesses.
            room: maximum tokens for guesses.
        """
        pace = self._paces.get(sequences)
        if pace is None or not pace.known(sequences):
            return Counter()
        likeliest = sorted(
            (
                (chance, identifier)
                for identifier, chances in guesses.items()
                for chance in chances
                if chance >= UNLIKELY
            ),
            reverse=True,
        )[:room]
        if not likeliest:
            return Counter()
        least = GAIN * sequences / pace.of(sequences)
        best, expected = 0, float(sequences)
        for count, (chance, _) in enumerate(likeliest, start=1):
            expected += chance
            if (rate := expected / pace.of(sequences + count)) > least:
                best, least = count, rate
        if best:
            self._patience = PATIENCE
        elif expected >= 2 * sequences:
            best = self._tried_again(len(likeliest))
        return Counter(identifier for _, identifier in likeliest[:best])

    def _tried_again(self, count: int) -> int:
        self._held += 1
        if self._held < self._patience:
            return 0
        self._held, self._patience = 0, min(2 * self._patience, MOST_PATIENCE)
        return count
