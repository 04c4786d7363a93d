"""Limits processes to a share of a core with the kernel's control groups, to simulate slower
machines.
"""

import contextlib
from collections.abc import Generator
from pathlib import Path

_GROUPS = Path("/sys/fs/cgroup")
_PERIOD_US = 10_000


@contextlib.contextmanager
def throttled(pid: int, share: float) -> Generator[None]:
    """Limits a process to a share of a core. Raises `OSError` if this process lacks the
    permission.
    """
    quota_us = int(share * _PERIOD_US)
    if (_GROUPS / "cgroup.controllers").exists():
        parent, limits = _GROUPS, {"cpu.max": f"{quota_us} {_PERIOD_US}"}
        (parent / "cgroup.subtree_control").write_text("+cpu")
    else:
        parent = _GROUPS / "cpu"
        limits = {"cpu.cfs_period_us": str(_PERIOD_US), "cpu.cfs_quota_us": str(quota_us)}
    group = parent / f"stoker-bench-{pid}"
    group.mkdir()
    try:
        for name, value in limits.items():
            (group / name).write_text(value)
        (group / "cgroup.procs").write_text(str(pid))
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            (parent / "cgroup.procs").write_text(str(pid))
        group.rmdir()
