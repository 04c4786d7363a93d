"""An asynchronous device for tests: a thread computes while the host continues."""

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager

import torch

from stoker.models.engines.transfers import OutputBlock, Outputs


class ThreadedStream:
    """Computes passes on a thread, in order. Inputs and outputs are copied, as for a GPU."""

    is_asynchronous = True

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, "device")
        self.is_open = threading.Event()
        """The device computes only while this is set."""
        self.is_open.set()
        self.is_lost = False
        """True if every pass fails."""
        self.launched = 0
        self.ended = 0
        self.most = 0
        """Maximum number of passes that were launched and had not ended."""

    def is_usable(self) -> bool:
        return not self.is_lost

    def uploads(self) -> AbstractContextManager[None]:
        return contextlib.nullcontext()

    def staged(self, value: torch.Tensor) -> torch.Tensor:
        return value.clone()

    def launch(self, compute: Callable[[], Outputs]) -> "_FuturePass":
        self.launched += 1
        self.most = max(self.most, self.launched - self.ended)
        return _FuturePass(self._executor.submit(self._computed, compute))

    def _computed(self, compute: Callable[[], Outputs]) -> Outputs:
        assert self.is_open.wait(20)
        if self.is_lost:
            self.ended += 1
            raise RuntimeError("CUDA error: unspecified launch failure")
        try:
            return OutputBlock(compute(), is_pinned=False).outputs
        finally:
            self.ended += 1

    def close(self) -> None:
        self.is_open.set()
        self._executor.shutdown()


class _FuturePass:
    def __init__(self, future: "Future[Outputs]") -> None:
        self._future = future

    @property
    def is_ready(self) -> bool:
        return self._future.done()

    def wait(self) -> Outputs:
        return self._future.result()
