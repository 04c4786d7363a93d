"""Changes the speed of sound without changing its pitch."""

import math
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import av
import numpy
from av import error
from av.filter import Graph
from numpy.typing import NDArray

_CHUNK = 1 << 16
"""Number of samples passed to FFmpeg at a time."""
_PADDING = 2
"""The final silence lasts this fraction of a second (1/2): more than the windows of a chain."""

Samples = NDArray[numpy.float32]


class Tempo:
    """FFmpeg's `atempo` (https://ffmpeg.org/ffmpeg-filters.html#atempo), applied piece by piece.

    Filters are chained, because one instance accepts no less than 0.5, and above 2 skips sound.

    `atempo` outputs whole windows only: nothing for a shorter sound, and more or less than the end
    of others. So silence follows the last piece, and the output is cut to its length.
    """

    def __init__(self, rate: int, speed: float) -> None:
        self._rate, self._speed = rate, speed
        self._given = self._taken = 0
        self._graph = _graph(rate, speed) if speed != 1 else None

    def add(self, samples: Samples, *, last: bool) -> Iterator[Samples]:
        """Adds samples of shape (n,) and yields the output that is ready, in the same shape."""
        if self._graph is None:
            yield from _chunks(samples)
            return
        sounding = self._given + samples.size
        yield from self._passed(samples)
        if last:
            remaining = math.ceil(sounding / self._speed) - self._taken
            silence = numpy.zeros(self._rate // _PADDING, numpy.float32)
            for piece in self._passed(silence, last=True):
                if remaining > 0:
                    yield piece[:remaining]
                remaining -= piece.size

    def _passed(self, samples: Samples, *, last: bool = False) -> Iterator[Samples]:
        graph: Any = self._graph
        for chunk in _chunks(samples):
            graph.push(self._frame(chunk))
            yield from self._ready()
        if last:
            graph.push(None)
            yield from self._ready()

    def _frame(self, samples: Samples) -> Any:
        frame: Any = av.AudioFrame.from_ndarray(samples[None], format="flt", layout="mono")
        frame.sample_rate = self._rate
        frame.pts, frame.time_base = self._given, Fraction(1, self._rate)
        self._given += samples.size
        return frame

    def _ready(self) -> Iterator[Samples]:
        graph: Any = self._graph
        while True:
            try:
                piece = graph.pull().to_ndarray()[0]
            except (error.BlockingIOError, error.EOFError):
                return
            self._taken += piece.size
            yield piece


def _chunks(samples: Samples) -> Iterator[Samples]:
    return (samples[start : start + _CHUNK] for start in range(0, samples.size, _CHUNK))


def _graph(rate: int, speed: float) -> Any:
    graph: Any = Graph()
    count = max(1, math.ceil(abs(math.log2(speed))))
    chain = [
        graph.add_abuffer(
            sample_rate=rate, format="flt", layout="mono", time_base=Fraction(1, rate)
        ),
        *(graph.add("atempo", repr(speed ** (1 / count))) for _ in range(count)),
        graph.add("abuffersink"),
    ]
    graph.link_nodes(*chain).configure()
    return graph
