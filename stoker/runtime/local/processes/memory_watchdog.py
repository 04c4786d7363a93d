"""Holds replicas to their memory: what takes far more than it claims is ended before others pay.

Measured from outside, as the kernel counts: a call of C may take gigabytes while the replica says
nothing. The limits are wide. What a model needs is an estimate until it was measured, and grows
with its inputs: its claim grows with it where there is memory, for which idle models make room.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from stoker.base.config import MIB
from stoker.models.engines import environments
from stoker.models.llm.engines.memory import most_cache_bytes
from stoker.models.tasks.registry import GENERATING
from stoker.runtime.amounts import in_words
from stoker.runtime.local.memory.memory import Memory
from stoker.runtime.local.memory.replica_table import ReplicaTable, Resident
from stoker.runtime.local.processes.engine_host import EngineHost
from stoker.runtime.local.processes.machine import (
    descendants,
    folder_bytes,
    own_bytes,
    private_bytes,
)
from stoker.runtime.observed import Reason
from stoker.runtime.specification import DeploymentSpec
from stoker.sandbox.written import most_written

LOOK_S = 0.25
"""Between two looks: a process may take about half a gigabyte meanwhile."""
_BELOW_EVERY = 4
"""Looks between two at the processes below replicas, for which all of the machine are listed."""
_SMALL_BYTES = 32 * MIB
"""What a process below a replica may hold uncounted: measuring it takes longer."""

AT_ONCE_TIMES, AT_ONCE_BYTES = 4, 1024 * MIB
"""So many times what is known of a model, and so much beside it, however much memory is free."""
ALWAYS_TIMES, ALWAYS_BYTES = 2, 256 * MIB
"""So many times what it was granted, and so much beside it, however little is free: loading holds
some weights twice, and an estimate is one."""
FILES = 20_000
"""Most files in a replica's own folder."""
FOLDERS_S = 5.0
"""Between two looks at these folders."""
DEVICE_BYTES = 4096 * MIB
"""What the libraries of a GPU hold in the machine's memory."""
_DEVICE = Path("/dev/nvidiactl")


class MemoryWatchdog:
    def __init__(
        self,
        host: EngineHost,
        residents: ReplicaTable,
        memory: Memory,
        measure: Callable[[int], int | None] = own_bytes,
        *,
        below: Callable[[Collection[int]], Mapping[int, Sequence[int]]] = descendants,
        measure_below: Callable[[int], int] = private_bytes,
    ) -> None:
        """
        Args:
            measure: the bytes that a process holds beside its files; None: it is gone.
            below: the processes below some.
            measure_below: the same as `measure` for one of those, which shares pages with others.
        """
        self._host = host
        self._residents = residents
        self._memory = memory
        self._measure = measure
        self._list_below = below
        self._measure_below = measure_below
        self._looks = 0
        self._has_device = _DEVICE.exists()

    def look(self) -> None:
        """Measure all replicas, raise claims of those that grow, and end what takes too much."""
        if self._looks % _BELOW_EVERY == 0:
            self._look_below()
        self._looks += 1
        for resident in list(self._residents.values()):
            self._look_at(resident)

    def _look_below(self) -> None:
        """Measure the processes below replicas. vLLM's process is its engine, of which nothing is
        known: it is not among them."""
        pids = {
            pid: resident
            for resident in self._residents.values()
            if (pid := self._host.pid(resident.replica.id))
            and resident.spec.engine not in environments.NAMES
        }
        if not pids:
            return
        found = self._list_below(pids)
        for pid, resident in pids.items():
            resident.below = sum(map(self._size_below, found[pid]))

    def _size_below(self, pid: int) -> int:
        """What it was forked with is the host's or its replica's, and counts there."""
        more = (self._measure(pid) or 0) - (self._measure(self._host.own_pid) or 0)
        if more <= _SMALL_BYTES:
            return 0
        # A process may hide its maps.
        return self._measure_below(pid) or more

    def _look_at(self, resident: Resident) -> None:
        pid = self._host.pid(resident.replica.id)
        found = self._measure(pid) if pid else None
        if found is None:
            return
        if resident.inherited is None:
            # What it was forked with: the host's, shared with all.
            resident.inherited = min(found, self._measure(self._host.own_pid) or 0)
        used = resident.used = max(0, found - resident.inherited) + resident.below
        claim = self._memory.main.size(resident.replica.id)
        if used <= claim:
            return
        most = self._most(resident)
        if used > most:
            resident.pool.end(resident.replica, Reason.MEMORY_EXCEEDED, _why(used, claim, most))
        else:
            self._memory.resize(resident.replica.id, used)

    async def look_at_folders(self, folder: Callable[[str], Path]) -> None:
        """End replicas that have written too much into their own folders.

        Args:
            folder: of a replica, by its id.
        """
        for resident in list(self._residents.values()):
            if resident.may_write is None:
                resident.may_write = await asyncio.to_thread(most_written, resident.model_dir)
            own = folder(resident.replica.id)
            size, count = await asyncio.to_thread(folder_bytes, own, FILES)
            if size > resident.may_write or count > FILES:
                why = (
                    f"its folder held {in_words(size)} in {count} files, and may hold "
                    f"{in_words(resident.may_write)} in {FILES} at most"
                )
                # On many machines temporary files are memory.
                resident.pool.end(resident.replica, Reason.MEMORY_EXCEEDED, why)

    def _most(self, resident: Resident) -> int:
        """What a replica may hold now."""
        spec, now = resident.spec, resident.pool.spec
        granted = spec.memory_bytes
        known = max(granted, now.memory_bytes) if spec.runs_like(now) else granted
        room = self._memory.main.room_of(resident.replica.id)
        at_once = known * AT_ONCE_TIMES + AT_ONCE_BYTES
        always = granted * ALWAYS_TIMES + ALWAYS_BYTES
        return max(min(at_once, room), always) + self._beside(spec)

    def _beside(self, spec: DeploymentSpec) -> int:
        """What is in no estimate."""
        cache = most_cache_bytes(self._memory.main.total)
        device = DEVICE_BYTES if self._has_device and spec.device != "cpu" else 0
        return device + (cache if spec.pipeline in GENERATING else 0)


def _why(used: int, claim: int, most: int) -> str:
    return (
        f"it held {in_words(used)} of memory, where it had claimed {in_words(claim)} and may take "
        f"{in_words(most)} at most"
    )
