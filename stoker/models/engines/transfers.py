"""Copies batches to a device and outputs back, and orders the copies and the passes.

A CPU computes at once. A GPU copies and computes while the host continues: `launch` returns before
the pass has ended.
"""

import contextlib
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch

Outputs = Mapping[str, Any]
"""Outputs of a model by name: tensors or other values."""

_ALIGNMENT = 64
"""Offsets of outputs in a block are multiples of this number of bytes."""


class Pending(Protocol):
    """Outputs of a pass that the device may still compute."""

    @property
    def is_ready(self) -> bool:
        """True if `wait` returns without waiting."""
        ...

    def wait(self) -> Outputs:
        """Returns the outputs in main memory. Floats are in single precision.

        Raises the errors of the pass.
        """
        ...


class DeviceStream(Protocol):
    """Runs copies and passes on one device, in the order of the calls. One thread calls it."""

    is_asynchronous: bool
    """True if the device computes while the host continues."""

    def is_usable(self) -> bool:
        """Waits for the device. Returns False if the device can no longer compute."""
        ...

    def uploads(self) -> AbstractContextManager[None]:
        """Runs the copies of the `with` block concurrently with the current pass. Later passes wait
        for them.
        """
        ...

    def staged(self, value: torch.Tensor) -> torch.Tensor:
        """Returns the tensor in memory that the device can read while the host continues (pinned
        memory).
        """
        ...

    def launch(self, compute: Callable[[], Outputs]) -> Pending:
        """Starts a pass and the copies of its outputs."""
        ...


class EndedPass:
    """Outputs of a pass that has ended."""

    is_ready = True

    def __init__(self, outputs: Outputs) -> None:
        self._outputs = outputs

    def wait(self) -> Outputs:
        return self._outputs


class HostStream:
    """The CPU: each pass ends before `launch` returns."""

    is_asynchronous = False

    def is_usable(self) -> bool:
        return True

    def uploads(self) -> AbstractContextManager[None]:
        return contextlib.nullcontext()

    def staged(self, value: torch.Tensor) -> torch.Tensor:
        return value

    def launch(self, compute: Callable[[], Outputs]) -> Pending:
        return EndedPass({name: _fetched(value) for name, value in compute().items()})


class CudaStream:
    """A GPU: passes run on the current stream of the calling thread, uploads on a second stream."""

    is_asynchronous = True

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._copies: torch.cuda.Stream | None = None

    def is_usable(self) -> bool:
        return is_usable(self._device)

    @contextlib.contextmanager
    def uploads(self) -> Generator[None]:
        # Created by the first upload: a process must not use CUDA before it is forked.
        self._copies = self._copies or torch.cuda.Stream(self._device)
        with torch.cuda.stream(self._copies):
            yield
        # Later passes wait for the copies. A running pass does not.
        torch.cuda.current_stream(self._device).wait_stream(self._copies)

    def staged(self, value: torch.Tensor) -> torch.Tensor:
        # The allocator keeps pinned memory until its copies have ended.
        return value.pin_memory()

    def launch(self, compute: Callable[[], Outputs]) -> Pending:
        block = OutputBlock(compute(), is_pinned=True)
        # `blocking` lets the waiting thread sleep instead of spin.
        copied = torch.cuda.Event(blocking=True)
        copied.record(torch.cuda.current_stream(self._device))
        return _Copied(block, copied)


class _Copied:
    """Outputs that a GPU copies to main memory."""

    def __init__(self, block: "OutputBlock", copied: torch.cuda.Event) -> None:
        self._block = block
        self._copied = copied

    @property
    def is_ready(self) -> bool:
        try:
            return self._copied.query()
        except RuntimeError:
            # `wait` raises the error.
            return True

    def wait(self) -> Outputs:
        self._copied.synchronize()
        return self._block.outputs


class OutputBlock:
    """One block of main memory for all outputs of a pass. Starts the copies into it."""

    def __init__(self, outputs: Outputs, *, is_pinned: bool) -> None:
        singles = {name: _single(value) for name, value in outputs.items()}
        self._sources = {
            name: value for name, value in singles.items() if isinstance(value, torch.Tensor)
        }
        """Tensors on the device. They stay alive until they are copied."""
        offsets, size = _offsets(self._sources)
        block = torch.empty(size, dtype=torch.uint8, pin_memory=is_pinned)
        self.outputs: dict[str, Any] = dict(singles)
        """Outputs in main memory, which are complete once the copies have ended."""
        for name, source in self._sources.items():
            part = block[offsets[name] : offsets[name] + source.nbytes]
            target = part.view(source.dtype).view(source.shape)
            self.outputs[name] = target.copy_(source, non_blocking=True)


def _offsets(tensors: Mapping[str, torch.Tensor]) -> tuple[dict[str, int], int]:
    """Returns each tensor's offset in a block, and the block's size in bytes."""
    offsets: dict[str, int] = {}
    end = 0
    for name, tensor in tensors.items():
        offsets[name] = end
        end += -(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT
    return offsets, end


def _single(value: Any) -> Any:
    """Converts a tensor of floats to single precision, which numpy supports."""
    is_float = isinstance(value, torch.Tensor) and value.is_floating_point()
    return value.float() if is_float else value


def _fetched(value: Any) -> Any:
    """Moves a tensor to main memory."""
    return _single(value).cpu() if isinstance(value, torch.Tensor) else value


def is_usable(device: torch.device) -> bool:
    """Waits for a GPU. Returns False if the device can no longer compute."""
    # After an invalid memory access, for example, every call in the process's context fails.
    try:
        torch.cuda.synchronize(device)
    except RuntimeError:
        return False
    return True


def stream_of(device: torch.device) -> DeviceStream:
    """Returns the stream of an engine's device."""
    return CudaStream(device) if device.type == "cuda" else HostStream()
