"""Chooses a peer's dtype: the fastest one on this machine."""

from collections.abc import Callable
from pathlib import Path

from bench import machine
from bench.common import Report, progress
from stoker.wire.protocol import Execution

FLOAT32, BFLOAT16, INT8 = "float32", "bfloat16", "int8"


def best(report: Report, side: str, unit: str, rate: Callable[[str], float]) -> str:
    """Returns the fastest of the dtypes that the processor supports, after a short trial of each.
    Records the trials in the report.

    Args:
        rate: returns the side's rate in a dtype, in `unit`. Raises RuntimeError if the dtype does
            not work.
    """
    tried: dict[str, float] = {}
    failed: dict[str, str] = {}
    for dtype in (FLOAT32, *([BFLOAT16] if machine.has_bfloat16() else ())):
        try:
            tried[dtype] = rate(dtype)
        except RuntimeError as error:
            failed[dtype] = str(error).strip()[-300:]
            progress(f"{side} in {dtype} failed: {failed[dtype]}")
            continue
        progress(f"{side} in {dtype}: {tried[dtype]:.3g} {unit}")
    if not tried:
        raise RuntimeError("\n".join(failed.values()))
    chosen = max(tried, key=lambda dtype: tried[dtype])
    entry = report.settings.setdefault(side, {})
    entry |= {"dtype": chosen, "dtypes_tried": {"unit": unit, **tried, **failed}}
    return chosen


def ours() -> list[str]:
    """Returns all dtypes that can be requested from Stoker on this machine."""
    return [FLOAT32, *([BFLOAT16] if machine.has_bfloat16() else ()), INT8]


def of_ours(folder: Path, execution: Execution | None = None) -> str:
    """Returns Stoker's dtype on a CPU: the default with torch, or that of the conversion."""
    from stoker.models.engines.precision import dtype_of
    from stoker.models.engines.torch import device_of

    if execution:
        return {"bf16": BFLOAT16, "f32": FLOAT32}[execution.precision]
    return str(dtype_of("auto", device_of("cpu"), folder)).removeprefix("torch.")
