"""CUDA's driver library (libcuda) by ctypes, without torch.

Only a few calls: a context, and checkpoints of other processes. The library is loaded on first use,
and only in processes that may use CUDA. https://docs.nvidia.com/cuda/cuda-driver-api/
"""

import ctypes
import struct
from enum import IntEnum

LIBRARY = "libcuda.so.1"
_MAJOR, _MINOR = 75, 76
"""Attributes of a device: its compute capability."""
_NAME_BYTES = 256
_ARGUMENTS_BYTES = 64
"""Size of the argument structures of all calls for checkpoints."""
_CHECKPOINT_CALLS = ("Lock", "Checkpoint", "Restore", "Unlock", "GetState")
_BLOCK_BYTES = 1 << 20


class ProcessState(IntEnum):
    """State of a process for checkpoints."""

    RUNNING = 0
    LOCKED = 1
    """Its calls of CUDA wait."""
    CHECKPOINTED = 2
    """Its memory of all devices is in main memory."""
    FAILED = 3


class DriverError(RuntimeError):
    """A call of the driver failed."""

    def __init__(self, call: str, code: int, text: str) -> None:
        super().__init__(f"{call}: error {code} ({text})")
        self.code = code


class Driver:
    """Raises `OSError` if the library is missing. All calls raise `DriverError`."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(LIBRARY)

    def version(self) -> tuple[int, int]:
        """Returns the newest CUDA version that the driver supports. Does not initialise CUDA."""
        number = ctypes.c_int()
        self._call("cuDriverGetVersion", ctypes.byref(number))
        return number.value // 1000, number.value % 1000 // 10

    def start(self) -> None:
        """Initialises CUDA in this process. Its forks can never use CUDA."""
        self._call("cuInit", 0)

    def count(self) -> int:
        number = ctypes.c_int()
        self._call("cuDeviceGetCount", ctypes.byref(number))
        return number.value

    def name(self, index: int) -> str:
        text = ctypes.create_string_buffer(_NAME_BYTES)
        self._call("cuDeviceGetName", text, _NAME_BYTES, self._device(index))
        return text.value.decode(errors="replace")

    def capability(self, index: int) -> tuple[int, int]:
        device, numbers = self._device(index), (ctypes.c_int(), ctypes.c_int())
        for number, attribute in zip(numbers, (_MAJOR, _MINOR), strict=True):
            self._call("cuDeviceGetAttribute", ctypes.byref(number), attribute, device)
        return numbers[0].value, numbers[1].value

    def open_context(self, index: int) -> None:
        """Creates the device's primary context, which stays. Writes to its memory, and reads it."""
        context, address = ctypes.c_void_p(), ctypes.c_uint64()
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self._device(index))
        self._call("cuCtxSetCurrent", context)
        size = ctypes.c_size_t(_BLOCK_BYTES)
        self._call("cuMemAlloc_v2", ctypes.byref(address), size)
        self._call("cuMemsetD8_v2", address, ctypes.c_ubyte(7), size)
        content = ctypes.create_string_buffer(_BLOCK_BYTES)
        self._call("cuMemcpyDtoH_v2", content, address, size)
        self._call("cuMemFree_v2", address)
        if content.raw != b"\7" * _BLOCK_BYTES:
            raise DriverError("cuMemcpyDtoH", 0, "the memory has another content")

    # --- checkpoints of other processes ---

    @property
    def has_checkpoints(self) -> bool:
        return all(hasattr(self._library, f"cuCheckpointProcess{n}") for n in _CHECKPOINT_CALLS)

    def state(self, pid: int) -> ProcessState:
        number = ctypes.c_int()
        self._call("cuCheckpointProcessGetState", pid, ctypes.byref(number))
        return ProcessState(number.value)

    def checkpoint(self, pid: int, *, timeout_s: float) -> None:
        """Moves a process's memory of all devices to main memory. Its calls of CUDA wait from then
        on.

        Args:
            timeout_s: maximum time to wait for the process's running calls.
        """
        arguments = struct.pack("=I", max(1, int(timeout_s * 1000))).ljust(_ARGUMENTS_BYTES, b"\0")
        self._on_process("Lock", pid, arguments)
        try:
            self._on_process("Checkpoint", pid)
        except DriverError:
            if self.state(pid) is ProcessState.LOCKED:
                self._on_process("Unlock", pid)
            raise

    def restore(self, pid: int) -> None:
        """Moves the memory back. The process's calls of CUDA continue."""
        self._on_process("Restore", pid)
        self._on_process("Unlock", pid)

    def _on_process(self, call: str, pid: int, arguments: bytes = b"") -> None:
        structure = arguments.ljust(_ARGUMENTS_BYTES, b"\0")
        block = ctypes.create_string_buffer(structure, _ARGUMENTS_BYTES)
        self._call(f"cuCheckpointProcess{call}", pid, block)

    def _device(self, index: int) -> ctypes.c_int:
        device = ctypes.c_int()
        self._call("cuDeviceGet", ctypes.byref(device), index)
        return device

    def _call(self, name: str, *arguments: object) -> None:
        function = getattr(self._library, name, None)
        if function is None:
            raise DriverError(name, 0, "the driver is too old")
        code: int = function(*arguments)
        if code:
            raise DriverError(name, code, self._text(code))

    def _text(self, code: int) -> str:
        text = ctypes.c_char_p()
        self._library.cuGetErrorString(code, ctypes.byref(text))
        return (text.value or b"unknown").decode(errors="replace")


def context_problem(index: int = 0) -> str:
    """Returns why this process cannot use CUDA on a device. Empty if it can. For forked children:
    the process keeps the context.
    """
    try:
        driver = Driver()
        driver.start()
        driver.open_context(index)
    except (OSError, DriverError) as error:
        return str(error)
    return ""
