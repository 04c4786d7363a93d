"""Records a pass once and replays it on the same tensors."""

import contextlib
import time
from collections.abc import Callable
from typing import Any, Protocol

import torch

from stoker.models.engines.transfers import Outputs

_WARM_UPS = 2
"""Number of passes before the recording. The first pass of a shape chooses kernels and allocates
their workspaces, which is not allowed during a recording.
"""
_TIMINGS = 3
RESERVE_SHARE, LEAST_RESERVE = 0.05, 1 << 30
"""Minimum free memory of the device for another recording: share of the total, and bytes. The
larger value counts.
"""
MOST_BYTES = 1 << 30
"""Maximum bytes of memory for all recordings of a process."""


class Recording(Protocol):
    """Recorded pass."""

    def replay(self) -> Outputs:
        """Computes the pass again from the current content of its inputs.

        The outputs are always the same tensors. The next replay of any recording may overwrite
        them.
        """
        ...


class Recorder(Protocol):
    """Records passes of one device."""

    def has_room(self) -> bool:
        """True if there is memory for another recording."""
        ...

    def record(self, compute: Callable[[], Outputs]) -> Recording:
        """Returns the recording of a pass, whose inputs must stay at the same addresses.

        Raises the errors of the device if the pass cannot be recorded, such as one that reads its
        results while it runs.
        """
        ...

    def seconds(self, compute: Callable[[], Outputs]) -> float:
        """Returns the duration of a pass in seconds."""
        ...


class HostRecorder:
    """Stand-in for a CPU: replays by computing again. Its outputs stay at the same addresses."""

    def __init__(self, most: int = 1 << 30) -> None:
        self._left = most

    def has_room(self) -> bool:
        return self._left > 0

    def record(self, compute: Callable[[], Outputs]) -> Recording:
        self._left -= 1
        return _HostRecording(compute)

    def seconds(self, compute: Callable[[], Outputs]) -> float:
        """Returns 0: on a CPU, a replay saves no time."""
        return 0.0


class _HostRecording:
    def __init__(self, compute: Callable[[], Outputs]) -> None:
        self._compute = compute
        self._outputs = {name: _copied(value) for name, value in compute().items()}

    def replay(self) -> Outputs:
        for name, value in self._compute().items():
            if isinstance(value, torch.Tensor):
                self._outputs[name].copy_(value)
        return self._outputs


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value


class CudaRecorder:
    """Records CUDA graphs that share one memory pool, because they run one after the other."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: torch.cuda.Stream | None = None
        self._pool: Any = None
        self._used_bytes = 0
        """Growth of torch's memory during all recordings."""

    def has_room(self) -> bool:
        free, total = torch.cuda.mem_get_info(self._device)
        return free >= max(LEAST_RESERVE, RESERVE_SHARE * total) and self._used_bytes < MOST_BYTES

    def record(self, compute: Callable[[], Outputs]) -> Recording:
        if self._stream is None:
            self._stream = torch.cuda.Stream(self._device)
            self._pool = torch.cuda.graph_pool_handle()
        before = torch.cuda.memory_reserved(self._device)
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(self._stream):
            # On the same stream as the recording, because workspaces belong to a stream.
            for _ in range(_WARM_UPS):
                compute()
            torch.cuda.synchronize(self._device)
            outputs = self._captured(graph, compute)
        torch.cuda.current_stream(self._device).wait_stream(self._stream)
        self._used_bytes += max(0, torch.cuda.memory_reserved(self._device) - before)
        return _CudaRecording(graph, outputs)

    def seconds(self, compute: Callable[[], Outputs]) -> float:
        return min(self._timed(compute) for _ in range(_TIMINGS))

    def _timed(self, compute: Callable[[], Outputs]) -> float:
        torch.cuda.synchronize(self._device)
        started = time.perf_counter()
        compute()
        torch.cuda.synchronize(self._device)
        return time.perf_counter() - started

    def _captured(self, graph: torch.cuda.CUDAGraph, compute: Callable[[], Outputs]) -> Outputs:
        # Not `torch.cuda.graph`: it empties torch's caches, so that later passes would allocate
        # again. Other threads may load adapters during a capture.
        graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
        try:
            outputs = compute()
        except BaseException:
            # `capture_end` fails too after an operation that cannot be captured.
            with contextlib.suppress(RuntimeError):
                graph.capture_end()
            raise
        graph.capture_end()
        return outputs


class _CudaRecording:
    def __init__(self, graph: torch.cuda.CUDAGraph, outputs: Outputs) -> None:
        self._graph = graph
        self._outputs = outputs

    def replay(self) -> Outputs:
        self._graph.replay()
        return self._outputs
