"""Checkpoints the CUDA state of another process to main memory through the driver, and restores it.

`python -m bench.gpu.checkpoint PID` prints the seconds of each step as JSON. It exits with 3 if
there is no driver that can do it.
"""

import ctypes
import json
import sys
import time

LIBRARY = "libcuda.so.1"
LOCK_MS = 10_000
UNSUPPORTED = 3
STEPS = ("Lock", "Checkpoint", "Restore", "Unlock")


class _Arguments(ctypes.Structure):
    """Arguments of all steps. Only the lock reads a field, its timeout in milliseconds."""

    _fields_ = [("timeout_ms", ctypes.c_uint), ("reserved", ctypes.c_uint * 15)]


def main(pid: int) -> None:
    try:
        library = ctypes.CDLL(LIBRARY)
        steps = {step: getattr(library, f"cuCheckpointProcess{step}") for step in STEPS}
    except (OSError, AttributeError) as error:
        print(error)
        sys.exit(UNSUPPORTED)
    library.cuInit(0)
    seconds: dict[str, float] = {}
    for step, call in steps.items():
        arguments = _Arguments(timeout_ms=LOCK_MS if step == "Lock" else 0)
        began = time.perf_counter()
        code = call(pid, ctypes.byref(arguments))
        seconds[step.lower()] = time.perf_counter() - began
        if code:
            sys.exit(f"step {step} of the driver failed with error {code}")
    print(json.dumps(seconds))


if __name__ == "__main__":
    main(int(sys.argv[1]))
