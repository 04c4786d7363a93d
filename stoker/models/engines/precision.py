"""Which numbers a model is computed in where nobody says, and which a processor has.

`auto` keeps to what the weights are stored in: half precision is computed in half precision where
the processor does that, and single precision stays what it is.
"""

import math
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from stoker.models.engines.record import AUTO

# It has no types.
_opened: Any = safe_open
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_STORED = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
"""Names in safetensors' headers, of what is computed in."""
_HALF = (torch.bfloat16, torch.float16)
_BFLOAT16 = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
_FLOAT16 = frozenset({"avx512_fp16", "amx_fp16", "fphp", "asimdhp"})
"""Flags of processors that multiply such numbers themselves; the short ones are ARM's."""
_INT8 = frozenset({"avx512_vnni", "avx_vnni", "amx_int8"})
_X86 = "sse2"


def dtype_of(wanted: str, device: torch.device, folder: Path | None = None) -> torch.dtype:
    """The type that a deployment's `dtype` means on a device.

    Args:
        folder: where the model's weights lie; None: what they are stored in does not matter.
    """
    if wanted != AUTO:
        # What conversions alone compute in is made of single precision.
        return _DTYPES.get(wanted, torch.float32)
    stored = stored_dtype(folder) if folder else None
    if device.type == "cuda":
        # Half the memory, where that is not known.
        return stored or torch.float16
    is_half = stored in _HALF and computes_in(torch.bfloat16)
    return torch.bfloat16 if is_half else torch.float32


def stored_dtype(folder: Path) -> torch.dtype | None:
    """What most numbers of a model's weights are stored in; None: neither single nor half
    precision, or no safetensors file says so.
    """
    counts = Counter[str]()
    for path in folder.glob("*.safetensors"):
        try:
            with _opened(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118 — it is no dict
                    part = file.get_slice(name)
                    counts[part.get_dtype()] += math.prod(part.get_shape())
        except SafetensorError:
            # Who loads it says what is wrong with it.
            continue
    return _STORED.get(counts.most_common(1)[0][0]) if counts else None


def computes_in(dtype: torch.dtype) -> bool:
    """Whether this machine's processor multiplies such numbers itself."""
    flags = {torch.bfloat16: _BFLOAT16, torch.float16: _FLOAT16}.get(dtype)
    return flags is None or bool(flags & _flags())


def saturates_in_int8() -> bool:
    """Whether this processor adds products of eight bits up in sixteen, where two may be too much:
    those of x86 that have no VNNI do (Intel's manual, VPMADDUBSW).
    """
    return _X86 in _flags() and not _INT8 & _flags()


def emulated(wanted: str, device: torch.device) -> str:
    """What to tell whoever asks for numbers that the processor does not compute in; empty:
    nothing.
    """
    dtype = _DTYPES.get(wanted)
    if device.type != "cpu" or dtype is None or computes_in(dtype):
        return ""
    return f"This processor does not compute in {wanted} but emulates it: float32 is faster."


@cache
def _flags() -> frozenset[str]:
    """Of the first core; none where the system does not tell."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    named = (line.partition(":") for line in lines)
    found = (value.split() for name, _, value in named if name.strip() in ("flags", "Features"))
    return frozenset(next(found, list[str]()))
