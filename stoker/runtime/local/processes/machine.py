"""Reads the machine's processes and processor from the kernel."""

import contextlib
import math
import os
import platform
import re
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import psutil

from stoker.runtime.local.processes.processor_time import TICKS, processor_s
from stoker.runtime.machine_memory import control_groups

_WEIGHTS = frozenset({".safetensors", ".gguf"})
_READ_AHEAD_TIMES = 4
"""Weights are read ahead if this multiple of their size is free."""
_JUST_NOW_S = 5.0
"""Seconds within which a process killed by the kernel has ended, however much memory it held."""

_OWN_SHARES = re.compile(rb"^(?:Pss_Anon|Pss_Shmem|SwapPss):\s+([0-9]+) kB$", re.MULTILINE)
_KILLS = re.compile(rb"^oom_kill ([0-9]+)$", re.MULTILINE)
_OWN_PAGES = re.compile(rb"^(?:RssAnon|RssShmem|VmSwap):\s+([0-9]+) kB$", re.MULTILINE)


def own_bytes(pid: int) -> int | None:
    """Returns the bytes that a process holds outside of files. None if it has ended.

    Includes inherited pages as long as the process shares them.
    """
    try:
        content = Path(f"/proc/{pid}/status").read_bytes()
    except OSError:
        return None
    return sum(int(size) for size in _OWN_PAGES.findall(content)) * 1024


def descendants(pids: Collection[int]) -> dict[int, list[int]]:
    """Returns all descendants of each of these processes.

    A process that leaves its session is included. The host ends a process that leaves its parent.
    """
    return below({pid: parent(pid) for pid in all_pids()}, pids)


def all_pids() -> list[int]:
    """Returns the ids of all processes that this process can see."""
    names = os.listdir("/proc")  # noqa: PTH208 - names alone, and often
    return [int(name) for name in names if name.isdecimal()]


def below(parents: Mapping[int, int], pids: Collection[int]) -> dict[int, list[int]]:
    """Returns all descendants of each of these processes.

    Args:
        parents: maps each process to its parent, or to 0.
    """
    children: dict[int, list[int]] = {}
    for pid, parent_pid in parents.items():
        if parent_pid:
            children.setdefault(parent_pid, []).append(pid)
    below_by_pid: dict[int, list[int]] = {}
    for pid in pids:
        found = list(children.get(pid, ()))
        for descendant in found:
            found += children.get(descendant, ())
        below_by_pid[pid] = found
    return below_by_pid


def parent(pid: int) -> int:
    """Returns the parent's id. 0 if the process has ended."""
    try:
        content = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return 0
    # The name may contain any character and ends with the last bracket; see proc(5).
    return int(content.rpartition(b")")[2].split()[1])


def private_bytes(pid: int) -> int:
    """Returns the bytes that a process holds outside of files. Shared pages count by their share. 0
    if they cannot be read.

    Takes milliseconds for each gigabyte.
    """
    try:
        content = Path(f"/proc/{pid}/smaps_rollup").read_bytes()
    except OSError:
        return 0
    return sum(int(size) for size in _OWN_SHARES.findall(content)) * 1024


def folder_bytes(folder: Path, most_files: int) -> tuple[int, int]:
    """Returns the bytes on disk and the number of files in a folder. Stops after `most_files`
    files.
    """
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
    """Returns the computing time of a process in the kernel's ticks. 0 if it has ended."""
    seconds = processor_s(pid)
    if seconds is not None:
        return int(seconds * TICKS)
    try:
        content = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    # The name may contain any character and ends with the last bracket; see proc(5).
    fields = content.rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


class KillCounters:
    """Counts the processes that the kernel has killed for lack of memory, here and elsewhere.

    Sums the counts of this process' control group and of the whole machine. Growth shows that a
    kill happened, but not of which process.
    """

    def __init__(self) -> None:
        counted = [Path("/proc/vmstat"), *(folder / "memory.events" for folder in control_groups())]
        self._paths = [path for path in counted if path.exists()]

    def __call__(self) -> int:
        total = 0
        for path in self._paths:
            try:
                content = path.read_bytes()
            except OSError:
                continue
            total += sum(int(count) for count in _KILLS.findall(content))
        return total


def kernel_kills() -> int:
    """Returns the current count of `KillCounters`."""
    return KillCounters()()


class KernelKills:
    """Detects whether the kernel has just killed a process for lack of memory.

    A kill does not explain an exit long after it. Processes can end for other reasons, and other
    processes run on the same machine.
    """

    def __init__(
        self,
        count: Callable[[], int] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._count, self._clock = count or KillCounters(), clock
        self._total = self._count()
        self._grew_at = -math.inf

    def look(self) -> None:
        """Updates the count. Call it often, because the time of a kill is only known as the time of
        this call.
        """
        total = self._count()
        if total > self._total:
            self._total, self._grew_at = total, self._clock()

    def just_now(self) -> bool:
        self.look()
        return self._clock() - self._grew_at < _JUST_NOW_S


def weights(folder: Path) -> list[Path]:
    """Returns a model's weight files."""
    return [path for path in folder.rglob("*") if path.suffix in _WEIGHTS and path.is_file()]


def read_ahead(folder: Path) -> None:
    """Has the kernel read a model's weights if much memory is free to keep them."""
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
    """Returns an id of the memory that this process shares with others. Empty if the kernel does
    not show it.

    The id consists of the kernel's boot id and the control group namespace, because a container has
    its own memory.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}:{Path('/proc/self/ns/cgroup').stat().st_ino}"
    except OSError:
        return ""


def processor_name() -> str:
    """Returns the processor's model name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()


def processor() -> str:
    """Returns the processor's kind and features. If they differ, libraries choose other kernels."""
    fields = ("vendor_id", "cpu family", "model", "model name", "stepping", "flags", "Features")
    try:
        # Read one core only: all cores are alike in these fields.
        core, _, _ = Path("/proc/cpuinfo").read_text().partition("\n\n")
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    lines = [line for line in core.splitlines() if line.partition("\t")[0].strip(": ") in fields]
    return "\n".join([platform.machine(), *lines])
