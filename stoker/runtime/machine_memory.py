"""Size of the machine's memory and of the replicas' part of it."""

from pathlib import Path

import psutil

from stoker.base.config import MIB

SHARE = 0.8
"""Fraction of the machine's memory that replicas may use if no setting limits it. The rest is for
the server, the engines' shared code, conversions and the kernel's file cache.
"""

_CGROUP_LIMITS = ("memory.max", "memory.limit_in_bytes")
_CGROUP_ROOTS = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/memory"))


def machine_bytes() -> int:
    """Returns the machine's memory in bytes, or the limit of a control group if that is lower."""
    return min([psutil.virtual_memory().total, *_cgroup_limits()])


def budget_bytes(given_mib: int) -> int:
    """Returns the bytes that all replicas together may use: the setting, or the default share of
    the machine's memory if it is 0.
    """
    return given_mib * MIB or int(machine_bytes() * SHARE)


def _cgroup_limits() -> list[int]:
    """Returns the memory limits of this process' control group and its parents, of either
    version.
    """
    limits: list[int] = []
    for folder in control_groups():
        for name in _CGROUP_LIMITS:
            try:
                text = (folder / name).read_text().strip()
            except OSError:
                continue
            if text.isdecimal():
                limits.append(int(text))
    return limits


def control_groups() -> list[Path]:
    """Returns the folders of this process' control group and its parents, of either version."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    folders: list[Path] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        for root in _CGROUP_ROOTS:
            group_folder = root / path.lstrip("/")
            folders += [
                group_folder,
                *(parent for parent in group_folder.parents if parent.is_relative_to(root)),
            ]
    return folders
