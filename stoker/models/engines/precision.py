"""Chooses a model's precision if none is specified, and detects the precisions of a processor.

On a CPU, `auto` follows the stored weights: half precision is used if the weights are stored in it
and the processor supports it. On a GPU, `half_precision` compares the answers.
"""

import math
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from stoker.models.engines.record import AUTO, TF32

# safe_open has no type hints.
_opened: Any = safe_open
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_STORED = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
"""Maps the names of types in safetensors' headers to the types for computing."""
HALF = (torch.bfloat16, torch.float16)
_BFLOAT16 = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
_FLOAT16 = frozenset({"avx512_fp16", "amx_fp16", "fphp", "asimdhp"})
"""Flags of processors that multiply float16 natively. The short ones are ARM's."""
_INT8 = frozenset({"avx512_vnni", "avx_vnni", "amx_int8"})
_X86 = "sse2"


def dtype_of(wanted: str, device: torch.device, folder: Path | None = None) -> torch.dtype:
    """Returns the type that a deployment's `dtype` means on a device.

    Args:
        folder: folder of the model's weights. None: their stored type does not matter.
    """
    if wanted != AUTO:
        # Other dtypes (int8, tf32) start from float32 weights.
        return _DTYPES.get(wanted, torch.float32)
    stored = stored_dtype(folder) if folder else None
    if device.type == "cuda":
        # If the stored type is unknown, float16 takes half the memory.
        return stored or torch.float16
    is_half = stored in HALF and computes_in(torch.bfloat16)
    return torch.bfloat16 if is_half else torch.float32


def half_precisions(stored: torch.dtype | None) -> Sequence[torch.dtype]:
    """Returns the half precisions that `auto` may choose on a GPU, the preferred one first."""
    # A value in float16 may have no equal in bfloat16, and vice versa. float16 keeps three more
    # bits of float32 weights than bfloat16. A comparison shows whether its range suffices.
    return (stored,) if stored in HALF else (torch.float16, torch.bfloat16)


def name_of(dtype: torch.dtype) -> str:
    """Returns the name that a deployment's `dtype` has for a torch dtype."""
    return str(dtype).removeprefix("torch.")


def set_up_gpu(wanted: str, *, shapes_vary: bool) -> None:
    """Configures torch's kernels on GPUs for this process and a deployment's `dtype`.

    Args:
        shapes_vary: False if a model runs many steps with the same shapes.
    """
    # By default, torch uses tf32 for convolutions, but not for matrix products.
    rounds = wanted == TF32
    torch.backends.cuda.matmul.allow_tf32 = rounds
    torch.backends.cudnn.allow_tf32 = rounds
    # On some GPUs, torch prefers cuDNN for attention in half precision. cuDNN plans each new shape
    # on the CPU, which takes 20 to 500 ms.
    torch.backends.cuda.enable_cudnn_sdp(enabled=not shapes_vary)


def stored_dtype(folder: Path) -> torch.dtype | None:
    """Returns the type of most numbers of a model's weights.

    None if it is neither single nor half precision, or if no safetensors file states it.
    """
    counts = Counter[str]()
    for path in folder.glob("*.safetensors"):
        try:
            with _opened(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118 — it is no dict
                    part = file.get_slice(name)
                    counts[part.get_dtype()] += math.prod(part.get_shape())
        except SafetensorError:
            # The load of the model reports the error.
            continue
    return _STORED.get(counts.most_common(1)[0][0]) if counts else None


def computes_in(dtype: torch.dtype) -> bool:
    """True if this machine's processor multiplies numbers of the type natively."""
    flags = {torch.bfloat16: _BFLOAT16, torch.float16: _FLOAT16}.get(dtype)
    return flags is None or bool(flags & _flags())


def saturates_in_int8() -> bool:
    """True if this processor adds products of eight bits in sixteen, which two products may
    overflow.

    Processors of x86 without VNNI do so (Intel's manual, VPMADDUBSW).
    """
    return _X86 in _flags() and not _INT8 & _flags()


def emulated(wanted: str, device: torch.device) -> str:
    """Returns a message about a requested type that the processor only emulates. Empty if it does
    not.
    """
    if device.type != "cpu":
        return ""
    if wanted == TF32:
        return "Only GPUs compute in tf32: the model runs in float32."
    dtype = _DTYPES.get(wanted)
    if dtype is None or computes_in(dtype):
        return ""
    return f"This processor does not compute in {wanted} but emulates it: float32 is faster."


@cache
def _flags() -> frozenset[str]:
    """Returns the flags of the first core, or an empty set if the system does not report them."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    named = (line.partition(":") for line in lines)
    flag_lists = (
        value.split() for name, _, value in named if name.strip() in ("flags", "Features")
    )
    return frozenset(next(flag_lists, list[str]()))
