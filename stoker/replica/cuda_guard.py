"""Keeps CUDA uninitialised in the engine host.

A process that forks after it has initialised CUDA leaves its children without CUDA. Some libraries
ask for CUDA on import. In the host, the guard answers them without the driver.
"""

import contextlib
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch as _torch

from stoker import sandbox

torch: Any = _torch
"""Untyped, because the guard replaces private functions."""

_DEVICE = re.compile(r"nvidia[0-9]+")
_OPENED = re.compile(r"/dev/nvidia(ctl|-uvm|[0-9]+)")
_MOST_BYTES = 4096
"""Maximum bytes of a forked child's report. A pipe holds this much without a reader."""


class CudaRefusedError(RuntimeError):
    """Raised by the guard if code in the engine host is about to initialise CUDA."""


class CudaGuard:
    """Replaces the functions of torch through which Python code reaches the CUDA driver.

    Availability and the number of devices come from the device files. Any other use of CUDA raises
    `CudaRefusedError`. Does nothing with a build of torch without CUDA.
    """

    def __init__(self) -> None:
        self._replaced: list[tuple[Any, str, Any]] = []

    def install(self) -> None:
        if not has_cuda_build():
            return
        self._replace(torch._C, "_cuda_getDeviceCount", _listed_devices)
        self._replace(torch._C, "_cuda_init", _refuse)
        self._replace(torch.cuda, "device_count", _listed_devices)

    def remove(self) -> None:
        """Restores the functions. Forked children may use CUDA."""
        while self._replaced:
            owner, name, function = self._replaced.pop()
            setattr(owner, name, function)

    def _replace(self, owner: Any, name: str, function: Callable[[], int]) -> None:
        self._replaced.append((owner, name, getattr(owner, name)))
        setattr(owner, name, function)


def has_cuda_build() -> bool:
    return torch.version.cuda is not None


def problem_of_forks() -> str:
    """Returns why a child that this process forks cannot use CUDA. Empty if it can.

    Detects uses of CUDA through torch, and open device files of any other library.
    """
    if not has_cuda_build():
        return ""
    opened = sorted({path for path in _open_files() if _OPENED.fullmatch(path)})
    if opened:
        return f"the engine host has opened {', '.join(opened)}"
    return _in_fork(lambda: _BAD_FORK if torch.cuda._is_in_bad_fork() else "")


def problem_of_import(run: Callable[[], None]) -> str:
    """Runs an import in a forked child. Returns why forks could not use CUDA after it.

    Empty if they could. Also empty with a build of torch without CUDA, which needs no attempt.
    """
    if not has_cuda_build():
        return ""

    def attempt() -> str:
        run()
        return problem_of_forks()

    return _in_fork(attempt)


_BAD_FORK = "torch has initialised CUDA in the engine host"


def _listed_devices() -> int:
    """Returns the number of devices that the driver lists in /dev."""
    return sum(1 for path in Path("/dev").iterdir() if _DEVICE.fullmatch(path.name))


def _refuse() -> int:
    raise CudaRefusedError("The engine host must not initialise CUDA: its forks could not use it.")


def _open_files() -> list[str]:
    """Returns the paths of this process's open files."""
    paths: list[str] = []
    for entry in Path("/proc/self/fd").iterdir():
        # The descriptor of the listing itself is closed.
        with contextlib.suppress(OSError):
            paths.append(str(entry.readlink()))
    return paths


def _in_fork(work: Callable[[], str]) -> str:
    """Returns the text that a function returns in a forked child, or how the child failed."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            sandbox.die_with_parent()
            os.close(reader)
            os.write(writer, work().encode()[:_MOST_BYTES])
            code = 0
        finally:
            os._exit(code)
    os.close(writer)
    with os.fdopen(reader, "rb") as output:
        text = output.read()
    _, status = os.waitpid(pid, 0)
    if code := os.waitstatus_to_exitcode(status):
        return f"a forked child ended with status {code}"
    return text.decode(errors="replace")
