"""Context of every figure: the machine, its load and the running code."""

import os
import platform
import subprocess
from collections.abc import Collection
from pathlib import Path
from typing import Any

from bench.common import ROOT, cores
from bench.launching import withheld

_FLAGS = (
    "avx2",
    "fma",
    "f16c",
    "avx_vnni",
    "avx512f",
    "avx512_vnni",
    "avx512_bf16",
    "avx512_fp16",
    "amx_tile",
    "amx_int8",
    "amx_bf16",
    "amx_fp16",
    "asimd",
    "bf16",
    "i8mm",
    "sve",
)
"""Processor flags that determine the speed of a forward pass. The last ones are ARM's."""
CLASSES = {"amx": "AMX", "avx512": "AVX-512", "avx2": "AVX2", "other": "another processor"}
"""Maps classes of processors to their titles, in the order of the reports."""
_CLASS_FLAGS = (("amx_tile", "amx"), ("avx512f", "avx512"), ("avx2", "avx2"))
_BFLOAT16 = {"avx512_bf16", "amx_bf16", "bf16"}


def facts() -> dict[str, Any]:
    """Returns the facts at the start of a benchmark."""
    flags = cpu_flags()
    return {
        "cpu": _cpu_field("model name") or platform.machine(),
        "flags": [name for name in _FLAGS if name in flags],
        "class": class_of(flags),
        "cores": cores(),
        "cpu_quota": _cpu_quota(),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
        "kernel": platform.release(),
        "load": [round(load, 2) for load in os.getloadavg()],
        "commit": _commit(),
        "withheld": withheld(),
    }


def class_of(flags: Collection[str]) -> str:
    """Returns the class of a processor by its flags. Within a class, the same code is fast."""
    return next((name for flag, name in _CLASS_FLAGS if flag in flags), "other")


def has_bfloat16() -> bool:
    """True if the processor multiplies bfloat16 matrices natively."""
    return bool(_BFLOAT16 & cpu_flags())


def cpu_flags() -> set[str]:
    return set((_cpu_field("flags") or _cpu_field("Features")).split())


def _cpu_field(name: str) -> str:
    """Returns a field of the first core. Empty if the system does not report it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    fields = (line.partition(":") for line in lines)
    return next((value.strip() for field, _, value in fields if field.strip() == name), "")


def _cpu_quota() -> float | None:
    """Returns the control group's processor time limit in cores, or None if it has no limit."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        return None
    return None if quota == "max" else int(quota) / int(period)


def _commit() -> dict[str, Any] | None:
    """Returns the commit of the running checkout, or None outside of git."""
    try:
        return {"id": _git("rev-parse", "HEAD"), "changed": bool(_git("status", "--porcelain"))}
    except (OSError, subprocess.CalledProcessError):
        return None


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()
