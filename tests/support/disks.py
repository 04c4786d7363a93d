"""Disks of a few MiB, and read-only folders."""

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def small_disk(path: Path, mib: int) -> Iterator[Path]:
    """Mounts a disk of `mib` MiB. Skips the test if this process may not mount."""
    path.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={mib}m", "tmpfs", str(path)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small disk needs root")
    try:
        yield path
    finally:
        subprocess.run(["umount", str(path)], check=True)


@contextlib.contextmanager
def read_only(folder: Path, path: Path) -> Iterator[Path]:
    """Mounts a folder read-only at `path`. Skips the test if this process may not mount."""
    path.mkdir(parents=True)
    mount = ["mount", "--bind", str(folder), str(path)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a read-only folder needs root")
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", str(path)], check=True)
        yield path
    finally:
        subprocess.run(["umount", str(path)], check=True)
