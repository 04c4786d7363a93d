"""What a peer computes in: the dtype that is the fastest for it, on the machine at hand."""

from collections.abc import Callable
from pathlib import Path

from bench import machine
from bench.common import Report, progress
from stoker.wire.protocol import Execution

FLOAT32, BFLOAT16, INT8 = "float32", "bfloat16", "int8"


def best(report: Report, side: str, unit: str, rate: Callable[[str], float]) -> str:
    """Of those that the processor has, by a short trial of each; the report is told of it.

    Args:
        rate: how fast the side is in a dtype, in `unit`. Raises RuntimeError where it cannot.
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
    """All that ours can be asked for, on this machine."""
    return [FLOAT32, *([BFLOAT16] if machine.has_bfloat16() else ()), INT8]


def of_ours(folder: Path, execution: Execution | None = None) -> str:
    """What ours computes in on a CPU: by itself with torch, or as it was converted."""
    from stoker.models.engines.precision import dtype_of
    from stoker.models.engines.torch import device_of

    if execution:
        return {"bf16": BFLOAT16, "f32": FLOAT32}[execution.precision]
    return str(dtype_of("auto", device_of("cpu"), folder)).removeprefix("torch.")
