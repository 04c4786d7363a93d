"""Maps seconds of a sound to seconds of its container.

The first sample may be played late, beside a video or behind an empty edit, and a recording that
was paused has gaps. Samples are kept without them.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

_JITTER_S = 0.25
"""Smaller gaps are rounding, or clocks that drift."""


class Timeline:
    """Times never decrease: a frame that overlaps the frame before it changes nothing."""

    def __init__(self) -> None:
        self._begins = [0.0]
        """Seconds of sound from which on a shift holds."""
        self._shifts = [0.0]

    def place(self, sound_s: float, container_s: float) -> None:
        """Enters that what is heard after `sound_s` of sound is played at `container_s`."""
        shift = container_s - sound_s
        if not sound_s:
            self._shifts = [max(0.0, shift)]
        elif shift > self._shifts[-1] + _JITTER_S:
            self._begins.append(sound_s)
            self._shifts.append(shift)

    @property
    def gaps(self) -> Sequence[float]:
        """Returns the seconds of sound at which a gap of the container lies."""
        return self._begins[1:]

    def begin(self, sound_s: float) -> float:
        """Returns when something is played that begins after `sound_s` of sound."""
        return sound_s + self._shifts[bisect_right(self._begins, sound_s) - 1]

    def end(self, sound_s: float) -> float:
        """Returns when something ends that ends after `sound_s` of sound."""
        return sound_s + self._shifts[max(0, bisect_left(self._begins, sound_s) - 1)]
