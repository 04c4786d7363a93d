"""Records a pass once and replays it on the same tensors."""

import time
from collections.abc import Callable
from typing import Any, Protocol

import torch

from stoker.models.engines.cuda_graphs import CudaGraphs
from stoker.models.engines.transfers import Outputs

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

    def is_usable(self) -> bool:
        """Waits for the device. Returns False if the device can no longer compute."""
        ...

    def warm_up(self, compute: Callable[[], Outputs]) -> None:
        """Runs a pass that will be recorded. Its first runs choose kernels and allocate their
        workspaces, which a recording must not do.
        """
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

    def is_usable(self) -> bool:
        return True

    def warm_up(self, compute: Callable[[], Outputs]) -> None:
        compute()

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
        self._graphs = CudaGraphs(device)
        self._used_bytes = 0
        """Growth of torch's memory during all recordings."""

    def has_room(self) -> bool:
        free, total = torch.cuda.mem_get_info(self._device)
        return free >= max(LEAST_RESERVE, RESERVE_SHARE * total) and self._used_bytes < MOST_BYTES

    def is_usable(self) -> bool:
        return self._graphs.is_usable()

    def warm_up(self, compute: Callable[[], Outputs]) -> None:
        self._graphs.warm_up(compute)

    def record(self, compute: Callable[[], Outputs]) -> Recording:
        before = torch.cuda.memory_reserved(self._device)
        graph, outputs = self._graphs.capture(compute)
        self._used_bytes += max(0, torch.cuda.memory_reserved(self._device) - before)
        return _CudaRecording(graph, outputs)

    def seconds(self, compute: Callable[[], Outputs]) -> float:
        torch.cuda.synchronize(self._device)
        started = time.perf_counter()
        compute()
        torch.cuda.synchronize(self._device)
        return time.perf_counter() - started


class _CudaRecording:
    def __init__(self, graph: torch.cuda.CUDAGraph, outputs: Outputs) -> None:
        self._graph = graph
        self._outputs = outputs

    def replay(self) -> Outputs:
        self._graph.replay()
        return self._outputs


def recorder_of(device: torch.device) -> Recorder | None:
    """Returns the recorder of an engine's device. None if recordings do not help it."""
    return CudaRecorder(device) if device.type == "cuda" else None
