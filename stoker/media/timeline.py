"""Maps seconds of a sound to seconds of its container.

The first sample may be played late, with a video or after an empty edit. A paused recording has
gaps. Samples are kept without them.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

_JITTER_S = 0.25
"""Minimum gap in seconds. Smaller gaps are rounding or clock drift."""


class Timeline:
    """Maps times of a sound to its container. Times never decrease: a frame that overlaps the frame
    before it changes nothing.
    """

    def __init__(self) -> None:
        self._begins = [0.0]
        """Seconds of sound from which each shift applies."""
        self._shifts = [0.0]

    def place(self, sound_s: float, container_s: float) -> None:
        """Records that the sound after `sound_s` seconds is played at `container_s`."""
        shift = container_s - sound_s
        if not sound_s:
            self._shifts = [max(0.0, shift)]
        elif shift > self._shifts[-1] + _JITTER_S:
            self._begins.append(sound_s)
            self._shifts.append(shift)

    @property
    def gaps(self) -> Sequence[float]:
        """Seconds of sound with a gap of the container."""
        return self._begins[1:]

    def begin(self, sound_s: float) -> float:
        """Returns the time in the container of a beginning after `sound_s` seconds of sound."""
        return sound_s + self._shifts[bisect_right(self._begins, sound_s) - 1]

    def end(self, sound_s: float) -> float:
        """Returns the time in the container of an end after `sound_s` seconds of sound."""
        return sound_s + self._shifts[max(0, bisect_left(self._begins, sound_s) - 1)]
