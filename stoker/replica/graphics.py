"""Restricts the GPUs that a replica sees, checks that torch can use them, and measures the memory
that the replica holds on them.
"""

import importlib
import os
import sys
from typing import Any

from stoker.models.engines.catalogue import ENGINES
from stoker.models.engines.record import AUTO
from stoker.wire.protocol import LoadFailed, ReplicaSpec, WorkerSpec

IDLE_CACHE_BYTES = 256 << 20
"""Unused memory that torch may keep on its devices while the replica is idle."""
_REASON_CHARACTERS = 400
_DOCTOR = "Run 'stoker doctor --gpu' on that machine."
_CUDA_BUILD = (
    "Install a build for CUDA on that machine: "
    "pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/cu130."
)


def restrict(spec: ReplicaSpec | WorkerSpec) -> None:
    """Makes only the claimed devices visible to CUDA.

    CUDA reads the variable on first use, which no process makes before it is forked.
    """
    if spec.visible_devices is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = spec.visible_devices


def problem(spec: ReplicaSpec) -> str:
    """Returns the reason that torch cannot use the GPU that the deployment requests or may use,
    with a hint.

    Empty if torch can use it, if the replica is meant for the CPU, or if its engine is not torch.
    """
    is_torch = spec.engine == AUTO or (spec.engine in ENGINES and ENGINES[spec.engine].is_torch)
    if not is_torch or spec.environment or spec.device == "cpu":
        return ""
    if spec.device == AUTO and not spec.visible_devices:
        return ""
    error = _error("cuda" if spec.device == AUTO else spec.device)
    # A device without free memory is usable. Loading the model reports the lack of memory.
    return "" if "out of memory" in error else error


def open_context() -> str:
    """Opens a context on the process's GPU and loads the libraries that most models use.

    Returns why that failed. Empty if it did not. torch keeps no memory of the device after it.
    """
    if error := _error("cuda"):
        return error
    torch: Any = importlib.import_module("torch")
    try:
        with torch.inference_mode():
            for dtype in (torch.float32, torch.float16, torch.bfloat16):
                use_libraries(torch, dtype, "cuda")
        torch.cuda.synchronize()
        # torch keeps a workspace for matrix products.
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()
    except Exception as error:
        return _reason(error)
    return ""


def context_problem() -> str:
    """Returns why the open context cannot be used any more. Empty if it can."""
    torch: Any = importlib.import_module("torch")
    try:
        torch.cuda.synchronize()
    except Exception as error:
        return _reason(error)
    return ""


def use_libraries(torch: Any, dtype: Any, device: str) -> None:
    """Runs the operations of a small encoder layer, so that a device's kernels are loaded."""
    functional = torch.nn.functional
    width, heads = 64, 2
    weight = torch.ones(width, width, device=device, dtype=dtype)
    rows = functional.embedding(torch.zeros(2, 16, device=device, dtype=torch.long), weight)
    rows = functional.layer_norm(functional.linear(rows, weight, weight[0]), (width,))
    split = rows.view(2, 16, heads, width // heads).transpose(1, 2)
    mixed = functional.scaled_dot_product_attention(split, split, split).transpose(1, 2)
    rows = functional.gelu(mixed.reshape(2, 16, width)) + rows
    functional.softmax(rows @ weight, dim=-1).float().cpu()


def _error(device: str) -> str:
    """Returns why torch cannot allocate memory of a device, with a hint. Empty if it can."""
    torch: Any = importlib.import_module("torch")
    if torch.version.cuda is None and torch.version.hip is None:
        return f"torch {torch.__version__} is a build for CPUs. {_CUDA_BUILD} {_DOCTOR}"
    try:
        # `is_available` would hide the reason.
        torch.empty(1, device=device)
    except Exception as error:
        return f"{_reason(error)}. {_DOCTOR}"
    return ""


def _reason(error: Exception) -> str:
    reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
    return reason[:_REASON_CHARACTERS].rstrip(".")


def refusal(problem: str) -> LoadFailed:
    """Returns the report of a replica whose deployment requests a GPU that torch cannot use."""
    return LoadFailed(f"the model requires a GPU, but torch cannot use it: {problem}", lasting=True)


def release_cache(*, least: int = 0) -> None:
    """Returns unused memory that torch caches to the device.

    If `least` is set, at least `least` bytes and a quarter of torch's memory must be unused.
    Otherwise it does nothing, because a new allocation from the driver takes long.
    """
    torch: Any = sys.modules.get("torch")
    if torch is None or torch.version.cuda is None or not torch.cuda.is_initialized():
        return
    places = range(torch.cuda.device_count())
    reserved = sum(int(torch.cuda.memory_reserved(place)) for place in places)
    unused = reserved - sum(int(torch.cuda.memory_allocated(place)) for place in places)
    if unused >= max(least, reserved // 4 if least else 0):
        torch.cuda.empty_cache()


def held(spec: ReplicaSpec) -> int | None:
    """Returns the bytes that torch reserves on the device with the most, including its cache.

    None if unknown: no device was claimed, or an engine other than torch uses the device.
    """
    if not spec.visible_devices or spec.environment:
        return None
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return None
    if torch.version.cuda is None:
        # With a build for CPUs, `auto` means the CPU.
        return 0
    if not torch.cuda.is_initialized():
        return None
    places = range(torch.cuda.device_count())
    return max((int(torch.cuda.memory_reserved(place)) for place in places), default=0)
