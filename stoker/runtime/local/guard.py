"""Holds replicas to their memory: what takes far more than it claims is ended before others pay.

Measured from outside, as the kernel counts: a call of C may take gigabytes while the replica says
nothing. The limits are wide. What a model needs is an estimate until it was measured, and grows
with its inputs: its claim grows with it where there is memory, for which idle models make room.
"""

from collections.abc import Callable
from pathlib import Path

from stoker.config import MIB
from stoker.llm.engines.memory import most_cache_bytes
from stoker.runtime.amounts import in_words
from stoker.runtime.local.engine_host import EngineHost
from stoker.runtime.local.machine import own_bytes
from stoker.runtime.local.memory import Memory
from stoker.runtime.local.residents import Resident, Residents
from stoker.runtime.observed import Reason
from stoker.runtime.specification import DeploymentSpec
from stoker.tasks.registry import GENERATING

LOOK_S = 0.25
"""Between two looks: a process may take about half a gigabyte meanwhile."""

AT_ONCE_TIMES, AT_ONCE_BYTES = 4, 1024 * MIB
"""So many times what is known of a model, and so much beside it, however much memory is free."""
ALWAYS_TIMES, ALWAYS_BYTES = 2, 256 * MIB
"""So many times what it was granted, and so much beside it, however little is free: loading holds
some weights twice, and an estimate is one."""
DEVICE_BYTES = 4096 * MIB
"""What the libraries of a GPU hold in the machine's memory."""
_DEVICE = Path("/dev/nvidiactl")


class Guard:
    def __init__(
        self,
        host: EngineHost,
        residents: Residents,
        memory: Memory,
        measure: Callable[[int], int | None] = own_bytes,
    ) -> None:
        """
        Args:
            measure: the bytes that a process holds beside its files; None: it is gone.
        """
        self._host = host
        self._residents = residents
        self._memory = memory
        self._measure = measure
        self._has_device = _DEVICE.exists()

    def look(self) -> None:
        """Measure all replicas, raise claims of those that grow, and end what takes too much."""
        for resident in list(self._residents.values()):
            self._look_at(resident)

    def _look_at(self, resident: Resident) -> None:
        pid = self._host.pid(resident.replica.id)
        found = self._measure(pid) if pid else None
        if found is None:
            return
        if resident.inherited is None:
            # What it was forked with: the host's, shared with all.
            resident.inherited = min(found, self._measure(self._host.own_pid) or 0)
        used = resident.used = max(0, found - resident.inherited)
        claim = self._memory.main.size(resident.replica.id)
        if used <= claim:
            return
        most = self._most(resident)
        if used > most:
            resident.pool.end(resident.replica, Reason.MEMORY_EXCEEDED, _why(used, claim, most))
        else:
            self._memory.resize(resident.replica.id, used)

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
