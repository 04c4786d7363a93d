"""Captures CUDA graphs of one device in one memory pool."""

import contextlib
from collections.abc import Callable, Generator
from typing import Any, TypeVar

import torch

from stoker.models.engines.transfers import is_usable

T = TypeVar("T")


class CudaGraphs:
    """Captures passes on a separate stream. The graphs share memory, so one runs at a time."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: torch.cuda.Stream | None = None
        self._pool: Any = None
        self._failed: list[torch.cuda.CUDAGraph] = []
        """Graphs whose capture failed. torch's allocators keep pointers to them."""

    def warm_up(self, compute: Callable[[], object]) -> None:
        """Runs a pass on the stream of the captures. The first pass of a shape loads kernels and
        allocates workspaces, which a capture must not do.
        """
        with self._on_stream():
            # Workspaces belong to a stream.
            compute()
        torch.cuda.synchronize(self._device)

    def capture(self, compute: Callable[[], T]) -> tuple[torch.cuda.CUDAGraph, T]:
        """Returns the graph of a pass, and the tensors that hold its outputs after each replay.

        Raises the errors of the device if the pass cannot be captured, such as one that reads its
        results while it runs.
        """
        # Not `torch.cuda.graph`: it collects garbage and empties the caches, which takes long, and
        # later passes would allocate again.
        graph = torch.cuda.CUDAGraph()
        with self._on_stream():
            try:
                # Other threads may load adapters meanwhile.
                graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
                outputs = compute()
                graph.capture_end()
            except BaseException:
                self._abandon(graph)
                raise
        return graph, outputs

    def is_usable(self) -> bool:
        """Waits for the device. Returns False if the device can no longer compute."""
        return is_usable(self._device)

    @contextlib.contextmanager
    def _on_stream(self) -> Generator[None]:
        current = torch.cuda.current_stream(self._device)
        if self._stream is None:
            self._stream = torch.cuda.Stream(self._device)
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            yield
        current.wait_stream(self._stream)

    def _abandon(self, graph: torch.cuda.CUDAGraph) -> None:
        """Ends a capture that failed.

        In released versions of torch, `capture_end` leaves the allocator in the state of a capture
        if it fails. `torch.cuda.empty_cache` fails from then on.
        """
        self._failed.append(graph)
        device, pool = self._device.index or 0, self._pool
        library: Any = torch
        with contextlib.suppress(RuntimeError):
            # Ends the capture of the stream. This fails after an operation that cannot be captured.
            graph.capture_end()
        with contextlib.suppress(RuntimeError, AttributeError):
            library._C._cuda_endAllocateToPool(device, pool)
            # Not reached if the capture had ended, because its end returned the memory.
            library._C._cuda_releasePool(device, pool)
        with contextlib.suppress(RuntimeError):
            # Ends the capture of random numbers.
            graph.reset()
        # Other graphs keep their pool.
        self._pool = None
