"""Sleep of replicas whose engine moves its GPU memory by itself, as vLLM does.

The driver cannot move it, because the engine runs in child processes of the replica.
"""

from stoker.runtime.local.memory.device_sizing import DeviceSizing
from stoker.runtime.local.memory.devices import Device
from stoker.runtime.local.memory.memory import MemoryAllocator
from stoker.runtime.local.memory.replica_table import Resident
from stoker.runtime.pool.launcher import SleepError
from stoker.wire.notices import cut
from stoker.wire.sleep import Moved, Sleep, Wake

_MOVE_S = 120.0
"""Timeout of a move in seconds, in addition to the time for the bytes."""
_BYTES_PER_S = 500e6
"""Lowest rate at which weights are expected to move. The first sleep also pins main memory."""


class OwnSleep:
    def __init__(self, memory: MemoryAllocator, sizing: DeviceSizing) -> None:
        self._memory = memory
        self._sizing = sizing

    async def sleep(self, resident: Resident) -> None:
        """Moves a replica's memory to main memory, and releases its claim except for what its
        processes still hold. Raises `SleepError`.
        """
        moved = await self._move(resident, Sleep())

        def rest(device: Device) -> int:
            return max(0, moved.held_bytes) + self._sizing.context_bytes(device.kind)

        self._memory.fell_asleep(resident.replica.id, rest)

    async def wake(self, resident: Resident) -> None:
        """Moves a replica's memory back. Raises `SleepError`."""
        await self._move(resident, Wake())
        self._memory.woke_up(resident.replica.id)

    async def _move(self, resident: Resident, message: Sleep | Wake) -> Moved:
        replica = resident.replica
        timeout_s = _MOVE_S + (replica.sleep_bytes or 0) / _BYTES_PER_S
        moved = await replica.move(message, timeout_s)
        if moved.error:
            raise SleepError(cut(moved.error))
        return moved
