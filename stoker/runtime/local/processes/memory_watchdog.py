"""Ends replicas that use far more memory than they claim, before others suffer.

Memory is measured from outside, as counted by the kernel: C code may allocate gigabytes without a
report by the replica. The limits are wide. A model's need is an estimate until it was measured, and
it grows with the inputs. Its claim grows with it if memory is available, and idle models are
evicted for it.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path

from stoker.base.config import MIB
from stoker.models.llm.engines.memory import most_cache_bytes
from stoker.models.tasks.registry import GENERATING
from stoker.runtime.amounts import in_words
from stoker.runtime.local.memory.memory import MemoryAllocator
from stoker.runtime.local.memory.replica_table import ReplicaTable, Resident
from stoker.runtime.local.processes.engine_host import EngineHost
from stoker.runtime.local.processes.machine import (
    folder_bytes,
    own_bytes,
    private_bytes,
)
from stoker.runtime.local.processes.process_tree import ProcessTree
from stoker.runtime.local.processes.processor_time import KeptReadings
from stoker.runtime.observed import Reason
from stoker.runtime.specification import DeploymentSpec
from stoker.sandbox.written import most_written

LOOK_S = 0.25
"""Seconds between two checks. A process may allocate about half a gigabyte in that time."""
_BELOW_EVERY = 4
"""Number of checks per check of the replicas' descendants, which lists all processes of the
machine.
"""
_SMALL_BYTES = 32 * MIB
"""Bytes that a replica's descendant may hold uncounted, because measuring takes longer."""

AT_ONCE_TIMES, AT_ONCE_BYTES = 4, 1024 * MIB
"""Multiple of a model's known memory, and bytes on top, that a replica may hold even if more memory
is free.
"""
ALWAYS_TIMES, ALWAYS_BYTES = 2, 256 * MIB
"""Multiple of the granted memory, and bytes on top, that a replica may always hold. Loading holds
some weights twice, and an estimate may be wrong.
"""
FILES = 20_000
"""Maximum number of files in a replica's own folder."""
FOLDERS_S = 5.0
"""Seconds between two checks of these folders."""
DEVICE_BYTES = 4096 * MIB
"""Bytes of the machine's memory that the libraries of a GPU hold."""
_DEVICE = Path("/dev/nvidiactl")


class MemoryWatchdog:
    def __init__(
        self,
        host: EngineHost,
        residents: ReplicaTable,
        memory: MemoryAllocator,
        measure: Callable[[int], int | None] | None = None,
        *,
        below: Callable[[Collection[int]], Mapping[int, Sequence[int]]] | None = None,
        measure_below: Callable[[int], int] | None = None,
    ) -> None:
        """
        Args:
            measure: returns the bytes that a process holds outside of files. None means that it has
                ended.
            below: returns the descendants of processes.
            measure_below: as `measure`, for a descendant that shares pages with others.
        """
        self._host = host
        self._residents = residents
        self._memory = memory
        self._measure = measure or KeptReadings(own_bytes)
        self._list_below = below or ProcessTree()
        self._measure_below = measure_below or KeptReadings(private_bytes)
        self._looks = 0
        self._has_device = _DEVICE.exists()

    def look(self) -> None:
        """Measures all replicas, raises the claims of growing ones, and ends those beyond their
        limit.
        """
        if self._looks % _BELOW_EVERY == 0:
            self._look_below()
        self._looks += 1
        for resident in list(self._residents.values()):
            self._look_at(resident)

    def _look_below(self) -> None:
        """Measures the replicas' descendants. Skips vLLM: its process is the engine, and its memory
        is unknown.
        """
        pids = {
            pid: resident
            for resident in self._residents.values()
            if (pid := self._host.pid(resident.replica.id)) and not resident.is_apart
        }
        if not pids:
            return
        below_by_pid = self._list_below(pids)
        for pid, resident in pids.items():
            resident.descendants = below_by_pid[pid]
            resident.below = sum(map(self._size_below, resident.descendants))

    def _size_below(self, pid: int) -> int:
        """Returns the bytes of a descendant without its inherited memory, which counts at the host
        or the replica.
        """
        more = (self._measure(pid) or 0) - (self._measure(self._host.own_pid) or 0)
        if more <= _SMALL_BYTES:
            return 0
        # A process may hide its memory maps.
        return self._measure_below(pid) or more

    def _look_at(self, resident: Resident) -> None:
        pid = self._host.pid(resident.replica.id)
        process_bytes = self._measure(pid) if pid else None
        if process_bytes is None:
            return
        if resident.inherited is None:
            # Inherited from the host and shared with all replicas.
            resident.inherited = min(process_bytes, self._measure(self._host.own_pid) or 0)
        used = resident.used = max(0, process_bytes - resident.inherited) + resident.below
        claim = self._memory.main.size(resident.replica.id)
        if used <= claim:
            return
        most = self._most(resident)
        if used > most:
            resident.pool.end(resident.replica, Reason.MEMORY_EXCEEDED, _why(used, claim, most))
        else:
            self._memory.resize(resident.replica.id, used)

    async def look_at_folders(self, folder: Callable[[str], Path]) -> None:
        """Ends replicas that have written too much into their own folders.

        Args:
            folder: returns the folder of a replica by its id.
        """
        folders = [(item, folder(item.replica.id)) for item in self._residents.values()]
        if not folders:
            return
        # One thread for all, because passing work to a thread takes longer than most folders.
        for resident, limit, size, count in await asyncio.to_thread(_measured, folders):
            resident.may_write = limit
            if size > limit or count > FILES:
                why = (
                    f"its folder held {in_words(size)} in {count} files, with a limit of "
                    f"{in_words(limit)} in {FILES} files"
                )
                # On many machines temporary files are stored in memory.
                resident.pool.end(resident.replica, Reason.MEMORY_EXCEEDED, why)

    def _most(self, resident: Resident) -> int:
        """Returns the bytes that a replica may hold now."""
        spec, now = resident.spec, resident.pool.spec
        granted = spec.memory_bytes
        known = max(granted, now.memory_bytes) if spec.runs_like(now) else granted
        room = self._memory.main.room_of(resident.replica.id)
        at_once = known * AT_ONCE_TIMES + AT_ONCE_BYTES
        always = granted * ALWAYS_TIMES + ALWAYS_BYTES
        asleep = self._memory.asleep_bytes(resident.replica.id)
        return max(min(at_once, room), always) + asleep + self._beside(spec)

    def _beside(self, spec: DeploymentSpec) -> int:
        """Returns the bytes that no estimate includes."""
        cache = most_cache_bytes(self._memory.main.total)
        device = DEVICE_BYTES if self._has_device and spec.device != "cpu" else 0
        return device + (cache if spec.pipeline in GENERATING else 0)


def _measured(folders: Iterable[tuple[Resident, Path]]) -> list[tuple[Resident, int, int, int]]:
    """Returns the limit in bytes, the size and the number of files of each replica's folder."""
    measured: list[tuple[Resident, int, int, int]] = []
    for resident, folder in folders:
        limit = resident.may_write
        if limit is None:
            limit = most_written(resident.model_dir)
        measured.append((resident, limit, *folder_bytes(folder, FILES)))
    return measured


def _why(used: int, claim: int, most: int) -> str:
    return (
        f"it held {in_words(used)} of memory, with a claim of {in_words(claim)} "
        f"and a limit of {in_words(most)}"
    )
