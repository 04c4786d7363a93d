"""Finds the silences of a recording and the stretches of sound at which it may be split.

A silence is close to the quietest noise of the whole recording. Speech over louder noise or music
is never classified as silence: such a recording is not split there, which costs time but no words.

The gateway imports this module through the task file, so numpy is imported inside functions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

SHORTEST_S = 0.6
"""Minimum duration of a silence in seconds. Shorter silences may be within a word."""
LONGEST_S = 6.0
"""Maximum duration in seconds of a silence within a stretch. A longer silence always ends the
stretch.
"""
MARGIN_S = 0.25
"""Silence in seconds that is kept on each side of a stretch."""
_DEEP_S = 0.4
_EDGE_S = 0.1
"""Distance in seconds between the start or end of a segment and the edge of the silence around
it.
"""
_FRAME_S = 0.02
_BLOCK_S = 10.0
"""Length in seconds of the blocks in which the noise is measured. The quietest block counts."""
_NOISE_DB = 8.0
"""Maximum level of a silent frame above the noise, in dB."""
_CONTRAST_DB = 20.0
"""Minimum level of the loudest frames above the noise, in dB. Otherwise no frame is silent."""
_LOUD_FRAMES = 20
"""Number of frames that reach the level which counts as the loudest."""
_DEPTH_DB = 70.0
"""Maximum distance in dB between the loudest frames and the noise. Quieter noise is raised to this
level.
"""
_CLICK_FRAMES = 3
"""Maximum number of frames of a sound that does not end a silence."""
_EMPHASIS = 0.97
"""Coefficient of the pre-emphasis, which removes hum and offsets."""

Samples: TypeAlias = "NDArray[numpy.float32]"


class Span(NamedTuple):
    """Part of a recording, in samples."""

    begin: int
    end: int

    def __len__(self) -> int:
        return self.end - self.begin


@dataclass(frozen=True)
class Silences:
    """Silences of a recording, in order."""

    spans: Sequence[Span]
    size: int
    """Number of samples in the recording."""
    rate: int
    """Samples per second."""

    @classmethod
    def of(cls, sound: Samples, rate: int) -> "Silences":
        """Returns the silences of a recording (samples,) at `rate` Hz."""
        step = round(_FRAME_S * rate)
        shortest = round(SHORTEST_S / _FRAME_S)
        spans: list[Span] = []
        for begin, end in _runs(_silent(_levels(sound, step))):
            if end - begin >= shortest:
                spans.append(Span(begin * step, min(end * step, sound.size)))
        return cls(spans, sound.size, rate)

    @property
    def seconds(self) -> float:
        """Length of the recording in seconds."""
        return self.size / self.rate

    def stretches(self, longest_s: float, whole: Span | None = None) -> list[Span]:
        """Returns the parts of a recording or span that are transcribed separately.

        A part ends at a long silence, or at the last silence before it would exceed `longest_s`. It
        is longer only if no silence interrupts it. Long silences are left out.
        """
        longest, margin = round(longest_s * self.rate), round(MARGIN_S * self.rate)
        pause = round(min(LONGEST_S, longest_s / 3) * self.rate)
        parts: list[Span] = []
        whole = whole or Span(0, self.size)
        for begin, end in self._sounds(whole):
            part = Span(max(whole.begin, begin - margin), min(whole.end, end + margin))
            last = parts[-1] if parts else None
            is_near = last is not None and part.begin - last.end < pause
            if last is not None and is_near and part.end - last.begin <= longest:
                parts[-1] = Span(last.begin, part.end)
            else:
                parts.append(part)
        return parts

    def _sounds(self, whole: Span) -> list[Span]:
        """Returns the sounds between the silences of a span."""
        edges = [whole.begin, *(edge for span in self.spans for edge in span), whole.end]
        limited = [min(max(edge, whole.begin), whole.end) for edge in edges]
        pairs = zip(limited[::2], limited[1::2], strict=True)
        return [Span(begin, end) for begin, end in pairs if end > begin] or [whole]

    def snapped(self, start: float, end: float) -> tuple[float, float]:
        """Returns a segment's times, in seconds, moved to the start and end of the sound.

        A time is moved if it is deep within a silence. Times beyond the recording are limited to
        its end. A segment within one silence, or outside all silences, is not moved.
        """
        start, end = min(start, self.seconds), min(max(start, end), self.seconds)
        before, behind = self.around(start), self.around(end)
        if (before is None and behind is None) or before == behind:
            return start, end
        if before is not None and before[1] - start > _DEEP_S:
            start = before[1] - _EDGE_S
        if behind is not None and end - behind[0] > _DEEP_S:
            end = behind[0] + _EDGE_S
        return start, max(start, end)

    def around(self, second: float) -> tuple[float, float] | None:
        """Returns start and end, in seconds, of the silence that contains a time, or None."""
        at = min(second * self.rate, self.size - 1)
        holding = (span for span in self.spans if span.begin <= at < span.end)
        span = next(holding, None)
        return None if span is None else (span.begin / self.rate, span.end / self.rate)


def _levels(sound: Samples, step: int) -> "NDArray[numpy.float64]":
    """Returns the level of each frame of `step` samples, in dB."""
    import numpy

    levels: list[Any] = []
    block = step * (1 << 14)
    for begin in range(0, sound.size, block):
        part = sound[begin : begin + block]
        before = sound[begin - 1] if begin else part[0]
        emphasised = part - _EMPHASIS * numpy.concatenate([[before], part[:-1]])
        padded = numpy.pad(emphasised, (0, -part.size % step))
        power = (padded.reshape(-1, step).astype(numpy.float64) ** 2).mean(1)
        levels.append(10 * numpy.log10(power + 1e-12))
    return numpy.concatenate(levels)


def _silent(levels: "NDArray[numpy.float64]") -> "NDArray[numpy.bool_]":
    """Returns True for each silent frame."""
    import numpy

    size = max(1, round(_BLOCK_S / _FRAME_S))
    blocks = numpy.array_split(levels, max(1, levels.size // size))
    loudest = float(numpy.sort(levels)[-min(levels.size, _LOUD_FRAMES)])
    noise = max(min(float(numpy.percentile(each, 10)) for each in blocks), loudest - _DEPTH_DB)
    silent = levels <= noise + _NOISE_DB
    if loudest - noise < _CONTRAST_DB:
        silent[:] = False
    for begin, end in _runs(~silent):
        if end - begin <= _CLICK_FRAMES and begin > 0 and end < levels.size:
            silent[begin:end] = True
    return silent


def _runs(flags: "NDArray[numpy.bool_]") -> list[tuple[int, int]]:
    """Returns start and end of each run of true values."""
    import numpy

    edges = numpy.flatnonzero(numpy.diff(numpy.concatenate([[0], flags.astype(numpy.int8), [0]])))
    return [(int(begin), int(end)) for begin, end in edges.reshape(-1, 2)]
