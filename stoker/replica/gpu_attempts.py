"""Functions that use CUDA. `stoker doctor` runs each in a forked child, which ends afterwards."""

import os
import time
from typing import Any

from stoker import sandbox
from stoker.replica.checkpoint import Driver
from stoker.replica.driver import Cuda
from stoker.replica.gpu_facts import used_mib

_SIDE = 512
_TOLERANCE = 1e-3
"""Maximum difference between float32 products of the GPU and the CPU."""
_BLOCK = 16 << 20
"""Number of int32 elements of the tensor that is checkpointed: 64 MiB."""


def torch_problem() -> str:
    """Returns why torch cannot multiply matrices on the GPU as on the CPU. Empty if it can."""
    import torch as _torch

    torch: Any = _torch
    torch.manual_seed(0)
    first, second = torch.randn(_SIDE, _SIDE), torch.randn(_SIDE, _SIDE)
    torch.backends.cuda.matmul.allow_tf32 = False
    product = (first.cuda() @ second.cuda()).cpu()
    difference = float((product - first @ second).abs().max())
    return "" if difference < _TOLERANCE else f"the products differ by {difference:.3g}"


def fork_problem() -> str:
    """Returns why torch cannot use a GPU in this fork. Empty if it can."""
    import torch as _torch

    torch: Any = _torch
    return "" if float(torch.ones(2, device="cuda").sum()) == 2 else "a sum is wrong"


def built_for() -> str:
    """Returns the compute capabilities that torch was built for, as in `sm_90 compute_90`.
    Afterwards, forks of this process cannot use CUDA.
    """
    import torch as _torch

    torch: Any = _torch
    return str(torch._C._cuda_getArchFlags() or "")


def capabilities() -> str:
    """Returns the compute capabilities of all devices, as in `9.0 8.6`."""
    driver = Cuda()
    driver.start()
    numbers = [driver.capability(index) for index in range(driver.count())]
    return " ".join(f"{major}.{minor}" for major, minor in numbers)


def version() -> str:
    """Returns the newest CUDA version that the driver supports."""
    return ".".join(map(str, Cuda().version()))


def context_mib() -> str:
    """Returns the memory of a context with the libraries of a matrix multiplication, in MiB."""
    before = used_mib()
    if problem := torch_problem():
        return problem
    after = used_mib()
    return str(after - before) if before is not None and after is not None else "unknown"


def checkpoint_report(walls: sandbox.Walls | None) -> str:
    """Checkpoints and restores another process that holds a context. Returns the seconds of both,
    as in `0.41 0.12`.

    Args:
        walls: walls around the other process. None means none.
    """
    from_target, to_controller = os.pipe()
    from_controller, to_target = os.pipe()
    pid = os.fork()
    if pid == 0:
        _be_target(walls, to_controller, from_controller)
    os.close(to_controller)
    _expect(from_target, b"ready")
    driver = Driver()
    begun = time.perf_counter()
    driver.sleep(pid)
    middle = time.perf_counter()
    driver.wake(pid)
    ended = time.perf_counter()
    os.write(to_target, b"go")
    _expect(from_target, b"equal")
    return f"{middle - begun:.2f} {ended - middle:.2f}"


def _be_target(walls: sandbox.Walls | None, writer: int, reader: int) -> None:
    """Holds a tensor on the GPU, and checks its content after a byte from `reader`. Reports to
    `writer`.
    """
    text = b"failed"
    try:
        sandbox.die_with_parent()
        if walls:
            sandbox.confine(walls)
        text = _target(writer, reader)
    except Exception as error:
        text = str(error).encode()
    finally:
        os.write(writer, text[:1000])
        os._exit(0)


def _target(writer: int, reader: int) -> bytes:
    import torch as _torch

    torch: Any = _torch
    block = torch.arange(_BLOCK, dtype=torch.int32, device="cuda")
    torch.cuda.synchronize()
    os.write(writer, b"ready")
    os.read(reader, 16)
    is_equal = bool((block.cpu() == torch.arange(_BLOCK, dtype=torch.int32)).all())
    return b"equal" if is_equal else b"the memory has another content"


def _expect(reader: int, expected: bytes) -> None:
    text = os.read(reader, 1000)
    if text != expected:
        raise RuntimeError(text.decode(errors="replace") or "the process ended")
