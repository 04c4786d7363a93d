"""The machine's processes and processor, as the kernel shows them."""

import contextlib
import math
import os
import platform
import re
import time
from collections.abc import Callable, Collection
from pathlib import Path

import psutil

from stoker.runtime.machine_memory import control_groups

_WEIGHTS = frozenset({".safetensors", ".gguf"})
_READ_AHEAD_TIMES = 4
"""Weights are read ahead where so many times their size is free."""
_JUST_NOW_S = 5.0
"""A process that the kernel kills has ended by then, however much memory it had."""

_OWN_SHARES = re.compile(rb"^(?:Pss_Anon|Pss_Shmem|SwapPss):\s+([0-9]+) kB$", re.MULTILINE)
_OWN_PAGES = re.compile(rb"^(?:RssAnon|RssShmem|VmSwap):\s+([0-9]+) kB$", re.MULTILINE)


def own_bytes(pid: int) -> int | None:
    """What a process holds that is in no file: bytes; None where it is gone.

    Pages that it was forked with count, too, as long as it shares them.
    """
    try:
        content = Path(f"/proc/{pid}/status").read_bytes()
    except OSError:
        return None
    return sum(int(size) for size in _OWN_PAGES.findall(content)) * 1024


def descendants(pids: Collection[int]) -> dict[int, list[int]]:
    """The processes below each of these, at any depth.

    A process that leaves its session is among them; the host ends one that leaves its parent.
    """
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 - names alone, and often
        if name.isdecimal() and (parent := _parent(name)):
            children.setdefault(parent, []).append(int(name))
    found: dict[int, list[int]] = {}
    for pid in pids:
        below = list(children.get(pid, ()))
        for one in below:
            below += children.get(one, ())
        found[pid] = below
    return found


def _parent(pid: str) -> int:
    """0 for a process that is gone."""
    try:
        content = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return 0
    # Its name, which may hold anything, ends with the last bracket; see proc(5).
    return int(content.rpartition(b")")[2].split()[1])


def private_bytes(pid: int) -> int:
    """What a process holds that is in no file, bytes, shared pages by their share; 0 if that cannot
    be read. It takes milliseconds for each gigabyte.
    """
    try:
        content = Path(f"/proc/{pid}/smaps_rollup").read_bytes()
    except OSError:
        return 0
    return sum(int(size) for size in _OWN_SHARES.findall(content)) * 1024


def folder_bytes(folder: Path, most_files: int) -> tuple[int, int]:
    """What lies in a folder: bytes on the disk, and how many files, of which it counts so many."""
    size = count = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                size += os.lstat(os.path.join(place, name)).st_blocks * 512  # noqa: PTH118
            count += 1
            if count > most_files:
                return size, count
    return size, count


def computed(pid: int) -> int:
    """How long a process has computed, in ticks of the kernel's; 0 where it is gone."""
    try:
        content = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    # Its name, which may hold anything, ends with the last bracket; see proc(5).
    fields = content.rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def kernel_kills() -> int:
    """How many processes the kernel has killed for want of memory, here and around.

    Counted by this process' control group and by the whole machine: growth means that there was
    one, not which.
    """
    counted = [Path("/proc/vmstat"), *(one / "memory.events" for one in control_groups())]
    total = 0
    for path in counted:
        try:
            lines = path.read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))
    return total


class KernelKills:
    """Whether the kernel has killed a process for want of memory just now.

    A kill says nothing of what ends long after it, however that ends: others are ended by their
    users, and run beside us.
    """

    def __init__(
        self,
        count: Callable[[], int] = kernel_kills,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._count, self._clock = count, clock
        self._total = count()
        self._grew_at = -math.inf

    def look(self) -> None:
        """Often, or the time of a kill is that of the question."""
        total = self._count()
        if total > self._total:
            self._total, self._grew_at = total, self._clock()

    def just_now(self) -> bool:
        self.look()
        return self._clock() - self._grew_at < _JUST_NOW_S


def weights(folder: Path) -> list[Path]:
    """The files of a model that hold its weights."""
    return [path for path in folder.rglob("*") if path.suffix in _WEIGHTS and path.is_file()]


def read_ahead(folder: Path) -> None:
    """Have the kernel read a model's weights where there is much free memory to keep them in."""
    files = weights(folder)
    if sum(path.stat().st_size for path in files) * _READ_AHEAD_TIMES > (
        psutil.virtual_memory().available
    ):
        return
    for path in files:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_WILLNEED)
        finally:
            os.close(descriptor)


def host_id() -> str:
    """Identifies the memory that this process shares with others: its kernel's boot and its control
    group namespace, as a container has memory of its own. Empty if the kernel shows neither.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}:{Path('/proc/self/ns/cgroup').stat().st_ino}"
    except OSError:
        return ""


def processor_name() -> str:
    """What the processor is sold as."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()


def processor() -> str:
    """The processor's kind and what it can: where this differs, libraries choose other kernels."""
    kept = ("vendor_id", "cpu family", "model", "model name", "stepping", "flags", "Features")
    try:
        # Those of one core: all are alike where it matters.
        core, _, _ = Path("/proc/cpuinfo").read_text().partition("\n\n")
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    lines = [line for line in core.splitlines() if line.partition("\t")[0].strip(": ") in kept]
    return "\n".join([platform.machine(), *lines])
