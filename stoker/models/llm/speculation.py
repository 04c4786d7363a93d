"""Decides how many guessed tokens a forward pass computes beside those that are certain.

A pass that is held up by reading the model's weights computes a few tokens more for next to
nothing; one that has much to compute already does not. Which of both it is depends on the model,
its engine, the machine and how many sequences there are, so the passes' times are measured, and the
number of guesses is the one by which most tokens a second are to be expected, as in
https://arxiv.org/abs/2406.14066. That is none where guesses are seldom right.
"""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Mapping, Sequence

MOST = 15
"""Guessed tokens of a sequence in a pass."""
MOST_SEQUENCES = 64
"""With more, nothing is guessed: their tokens are enough work for any pass."""
GAIN = 1.1
"""What is expected has to be so many times what there is without: times are not exact."""
UNLIKELY = 0.1
"""Tokens that are right less often are not computed."""
GROWTH = 0.02
"""What each token more is taken to add to the time of a pass wider than any measured, as a share:
little, so that it is tried."""
RISES, FALLS = 0.2, 0.5
"""How far a measured time moves what is known. What a busy machine adds counts less."""
PATIENCE, MOST_PATIENCE = 32, 1024
"""So many passes would have had guesses that are likely and yet do not pay until they are tried
again: the machine may have been busy with something else."""


class Pace:
    """How long passes take, by how many tokens they compute."""

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}
        self._seen: set[int] = set()
        self._widths: list[int] = []

    def note(self, width: int, seconds: float) -> None:
        seconds = max(seconds, 1e-9)
        if width not in self._seen:
            # The first one of a shape may compile kernels for it.
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
        """Seconds of a pass: measured, or between its neighbours."""
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
    """One model's. Times are given to it: it has no clock."""

    def __init__(self) -> None:
        self._paces: dict[int, Pace] = {}
        """By how many sequences a pass is of."""
        self._held = 0
        """Passes that had likely guesses and went without."""
        self._patience = PATIENCE
        self.drafted = 0
        """Tokens that were guessed and computed."""
        self.accepted = 0
        """Of those, the ones that were drawn."""

    def forget(self) -> None:
        """The times of a runner that is no longer asked."""
        self._paces.clear()
        self._held, self._patience = 0, PATIENCE

    def passed(self, sequences: int, width: int, seconds: float) -> None:
        """Note the time of a pass in which so many sequences drew, of so many tokens."""
        self._paces.setdefault(sequences, Pace()).note(width, seconds)

    def chosen(
        self, guesses: Mapping[int, Sequence[float]], sequences: int, room: int
    ) -> Counter[int]:
        """How many tokens of which guesses to compute: sequence → number.

        Args:
            guesses: by sequence, the chance of each token that it and all before it are right.
            sequences: that draw in this pass, with guesses or without.
            room: most tokens for guesses.
        """
        pace = self._paces.get(sequences)
        if pace is None or not pace.known(sequences):
            return Counter()
        likeliest = sorted(
            (
                (chance, one)
                for one, chances in guesses.items()
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
        return Counter(one for _, one in likeliest[:best])

    def _tried_again(self, count: int) -> int:
        self._held += 1
        if self._held < self._patience:
            return 0
        self._held, self._patience = 0, min(2 * self._patience, MOST_PATIENCE)
        return count
