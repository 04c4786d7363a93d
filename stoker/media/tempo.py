"""Faster or slower sound of the same pitch."""

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
"""Samples handed to FFmpeg at a time."""

Samples = NDArray[numpy.float32]


class Tempo:
    """FFmpeg's `atempo` (https://ffmpeg.org/ffmpeg-filters.html#atempo), piece by piece.

    It is chained, because one instance takes no less than 0.5, and above 2 skips sound.
    """

    def __init__(self, rate: int, speed: float) -> None:
        self._rate = rate
        self._given = 0
        self._graph = _graph(rate, speed) if speed != 1 else None

    def add(self, samples: Samples, *, last: bool) -> Iterator[Samples]:
        """What there is, of shape (n,), once these samples, of such a shape, were added."""
        for start in range(0, samples.size, _CHUNK):
            chunk = samples[start : start + _CHUNK]
            if self._graph is None:
                yield chunk
            else:
                self._graph.push(self._frame(chunk))
                yield from self._ready()
        if last and self._graph:
            self._graph.push(None)
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
                yield graph.pull().to_ndarray()[0]
            except (error.BlockingIOError, error.EOFError):
                return


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
