"""Program that moves the GPU memory of other processes to main memory and back.

It uses the checkpoint functions of the CUDA driver (libcuda.so.1, driver 570 or later):
https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__CHECKPOINT.html

At the start it prints `ok` if the driver has these functions. Then it reads lines `sleep PID` or
`wake PID`, and answers each with a line: `ok`, or the reason of the failure. It exits at the end of
its input. If the driver hangs, only this program hangs.
"""

import ctypes
import signal
import sys
from collections.abc import Callable

from stoker import sandbox

LOCK_TIMEOUT_MS = 10_000
"""Timeout for the CUDA calls that the other process is executing."""
_LIBRARY = "libcuda.so.1"
_RUNNING, _LOCKED, _CHECKPOINTED = 0, 1, 2
"""Values of CUprocessState."""
_RESERVED_BYTES = 64
"""Size of CUcheckpointCheckpointArgs, CUcheckpointRestoreArgs and CUcheckpointUnlockArgs."""


class _LockArgs(ctypes.Structure):
    """CUcheckpointLockArgs."""

    _fields_ = (
        ("timeoutMs", ctypes.c_uint),
        ("reserved0", ctypes.c_uint),
        ("reserved1", ctypes.c_uint64 * 7),
    )


class DriverError(Exception):
    """Raised if a function of the driver fails."""


class Driver:
    """Functions of the CUDA driver. Raises `DriverError` or `OSError` if it lacks them."""

    def __init__(self, library: str = _LIBRARY) -> None:
        self._library = ctypes.CDLL(library)
        for name in ("Lock", "Checkpoint", "Restore", "Unlock", "GetState"):
            if not hasattr(self._library, f"cuCheckpointProcess{name}"):
                raise DriverError("the driver is older than version 570")
        self._call("cuInit", 0)

    def sleep(self, pid: int) -> None:
        """Moves a process's GPU memory to main memory. The process's CUDA calls block until
        `wake`.
        """
        self._call("cuCheckpointProcessLock", pid, _LockArgs(timeoutMs=LOCK_TIMEOUT_MS))
        try:
            self._call("cuCheckpointProcessCheckpoint", pid, _reserved())
        except DriverError:
            if self._state(pid) == _LOCKED:
                self._call("cuCheckpointProcessUnlock", pid, _reserved())
            raise

    def wake(self, pid: int) -> None:
        """Moves a process's memory back to its GPU. The process's CUDA calls continue."""
        if self._state(pid) == _CHECKPOINTED:
            self._call("cuCheckpointProcessRestore", pid, _reserved())
        if self._state(pid) != _RUNNING:
            self._call("cuCheckpointProcessUnlock", pid, _reserved())

    def _state(self, pid: int) -> int:
        state = ctypes.c_int(-1)
        self._call("cuCheckpointProcessGetState", pid, state)
        return state.value

    def _call(self, name: str, number: int, argument: object = None) -> None:
        """Calls a function with a number and a pointer to an argument."""
        arguments = [] if argument is None else [ctypes.byref(argument)]  # type: ignore[arg-type]
        code = getattr(self._library, name)(ctypes.c_int(number), *arguments)
        if code:
            raise DriverError(f"{name} returned error {code}{self._named(code)}")

    def _named(self, code: int) -> str:
        text = ctypes.c_char_p()
        if self._library.cuGetErrorName(ctypes.c_int(code), ctypes.byref(text)):
            return ""
        return f" ({(text.value or b'').decode()})"


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sandbox.die_with_parent()
    try:
        driver = Driver(*sys.argv[1:])
    except (DriverError, OSError) as error:
        _answer(str(error))
        return
    _answer("ok")
    actions: dict[str, Callable[[int], None]] = {"sleep": driver.sleep, "wake": driver.wake}
    for line in sys.stdin:
        action, _, pid = line.partition(" ")
        try:
            actions[action](int(pid))
        except DriverError as error:
            _answer(str(error))
        else:
            _answer("ok")


def _reserved() -> ctypes.Array[ctypes.c_char]:
    """Returns a zeroed structure of arguments without fields, as the driver requires."""
    return ctypes.create_string_buffer(_RESERVED_BYTES)


def _answer(text: str) -> None:
    sys.stdout.write(" ".join(text.split()) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
