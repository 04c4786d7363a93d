"""Reads the GPUs' memory from the driver while the server runs, and corrects the budgets by it.

The driver knows the memory of each process, but in a container it may list the processes with the
ids of the host, or not at all. Then CUDA's context is what a GPU holds beyond its use before the
first replica and beyond torch's memory, divided by the replicas.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from stoker.base.config import MIB
from stoker.runtime.local.memory.budget import Budget
from stoker.runtime.local.memory.budgets import DeviceUse
from stoker.runtime.local.memory.device_sizing import DeviceSizing, is_plausible_context
from stoker.runtime.local.memory.devices import Device, Devices, ProcessBytes
from stoker.runtime.local.memory.memory import MemoryAllocator
from stoker.runtime.local.memory.replica_table import ReplicaTable, Resident

log = logging.getLogger(__name__)

DEVICES_S = 10.0
"""Seconds between two readings of the GPUs."""
CONFIRMED_S = 1.5
"""Seconds until a loss of GPU memory is read again. Replicas report their memory once a second."""
_SLACK_BYTES = 16 * MIB
"""Tolerance in bytes, because the driver and a replica report their figures at different times."""


@dataclass(frozen=True)
class DriverReading:
    """One reading of the driver."""

    table: Sequence[Device]
    processes: ProcessBytes = field(default_factory=dict[int, Mapping[str, int]])
    left: Mapping[str, int] = field(default_factory=dict[str, int])
    """As `DeviceUse.left`."""


class DeviceWatch:
    def __init__(
        self,
        devices: Devices,
        *,
        first: Sequence[Device],
        memory: MemoryAllocator,
        sizing: DeviceSizing,
        residents: ReplicaTable,
        pid: Callable[[str], int | None],
        prepared: Callable[[str], Mapping[str, int]] = lambda _uuid: {},
    ) -> None:
        """
        Args:
            first: the devices at the start, before any replica runs.
            pid: returns a replica's process id.
            prepared: returns the process ids of a device's prepared workers.
        """
        self._devices = devices
        self._memory = memory
        self._sizing = sizing
        self._residents = residents
        self._pid = pid
        self._prepared = prepared
        self._before = {device.uuid: device.used_bytes for device in first}
        """Maps a device to the bytes in use before the first replica."""
        self._checks: set[asyncio.Task[None]] = set()
        memory.found(first)

    @property
    def problem(self) -> str:
        """Reason that the driver does not answer, in words. Empty if it does."""
        return self._devices.problem

    async def run(self, on_other_set: Callable[[], None]) -> None:
        """Reads the devices until it is cancelled.

        Args:
            on_other_set: called if devices have disappeared or are back.
        """
        while True:
            await asyncio.sleep(DEVICES_S)
            try:
                if await self.look():
                    on_other_set()
            except Exception:
                log.exception("GPUs could not be read; retrying")

    async def look(self) -> bool:
        """Reads the devices and corrects the budgets. Returns True if the set of devices
        changed.
        """
        reading = await self._read()
        if reading.table and self._memory.shows_loss(reading.table, self._use(reading)):
            # Replicas report their memory once a second, so a replica that grows looks like
            # another process. A loss evicts replicas, so it must last.
            await asyncio.sleep(CONFIRMED_S)
            reading = await self._read()
        return self.apply(reading)

    def check_shortage(self, on_others: Callable[[], None]) -> None:
        """Reads the devices after a replica ran out of their memory. Calls `on_others` if other
        processes have taken it.
        """
        task = asyncio.create_task(self._check_shortage(on_others))
        self._checks.add(task)
        task.add_done_callback(self._checks.discard)

    async def _check_shortage(self, on_others: Callable[[], None]) -> None:
        reading = await self._read()
        if reading.table and self._memory.shows_loss(reading.table, self._use(reading)):
            on_others()

    async def _read(self) -> DriverReading:
        before = self._held()
        table = await asyncio.to_thread(self._devices.table)
        processes = await asyncio.to_thread(self._devices.processes)
        left = {
            _uuid(book): sum(
                size for replica_id, size in before[_uuid(book)].items() if not book.has(replica_id)
            )
            for book in self._books()
        }
        return DriverReading(table, processes, left)

    def apply(self, reading: DriverReading) -> bool:
        """Corrects the budgets by a reading. Returns True if the set of devices changed."""
        table = reading.table
        if not table:
            # An empty answer is no evidence: the driver may be busy.
            return False
        use = self._use(reading)
        self._measure_by_difference(table, reading.processes)
        is_other_set = self._memory.found(table, use)
        if is_other_set:
            log.warning("GPU set changed: %s", [device.name for device in table])
        return is_other_set

    def _use(self, reading: DriverReading) -> DeviceUse:
        return DeviceUse(self._real_bytes(reading.table, reading.processes), reading.left)

    def _held(self) -> Mapping[str, Mapping[str, int]]:
        """Maps each device to its replicas' bytes, as far as known, or their claims."""
        held: dict[str, Mapping[str, int]] = {}
        for book in self._books():
            kind = book.device.kind if book.device else ""
            real = {each.replica.id: self._bytes_of(each, kind) for each in self._measured(book)}
            held[_uuid(book)] = book.sizes() | real
        return held

    def _real_bytes(self, table: Sequence[Device], processes: ProcessBytes) -> Mapping[str, int]:
        """Returns the real bytes of the replicas that are known. Records their contexts."""
        kinds = {device.uuid: device.kind for device in table}
        real: dict[str, int] = {}
        for book in self._books():
            uuid = _uuid(book)
            for resident in self._measured(book):
                pid = self._pid(resident.replica.id) or 0
                held = processes.get(pid, {}).get(uuid)
                context = None if held is None else held - _reserved(resident)
                if context is not None and is_plausible_context(context):
                    resident.device_context = context
                    self._sizing.measure_context(kinds.get(uuid, ""), context)
                real[resident.replica.id] = self._bytes_of(resident, kinds.get(uuid, ""))
            context = self._sizing.context_bytes(kinds.get(uuid, ""))
            for worker_id, pid in self._prepared(uuid).items():
                # Its claim may be older than the measurement of the context.
                real[worker_id] = processes.get(pid, {}).get(uuid) or context
        return real

    def _bytes_of(self, resident: Resident, kind: str) -> int:
        """Returns the bytes of torch and of the context that a replica holds of its device."""
        context = resident.device_context
        return _reserved(resident) + (
            self._sizing.context_bytes(kind) if context is None else context
        )

    def _measure_by_difference(self, table: Sequence[Device], processes: ProcessBytes) -> None:
        """Measures CUDA's context on devices whose processes the driver does not list."""
        used = {device.uuid: device for device in table}
        for book in self._books():
            uuid, measured = _uuid(book), self._measured(book)
            device, before = used.get(uuid), self._before.get(uuid)
            if device is None or device.used_bytes is None or before is None:
                continue
            # A replica that loads, ends or falls asleep holds an unknown amount.
            contexts = len(measured) + len(self._prepared(uuid))
            is_whole = measured and contexts == len(book.sizes()) and not book.leaving
            if not is_whole or any(uuid in held for held in processes.values()):
                continue
            reserved = sum(map(_reserved, measured))
            context = (device.used_bytes - before - reserved) // contexts
            self._sizing.measure_context(device.kind, context, may_lower=True)

    def _books(self) -> Iterable[Budget]:
        return [book for book in self._memory.devices if book.device]

    def _measured(self, book: Budget) -> list[Resident]:
        """Returns the replicas on a device that have answered and reported their memory."""
        residents = [self._residents.get(replica_id) for replica_id in book.sizes()]
        return [
            resident
            for resident in residents
            if resident
            and resident.replica.answered
            and (resident.replica.vitals.device_bytes or 0) > _SLACK_BYTES
        ]


def _reserved(resident: Resident) -> int:
    """Returns the bytes that torch holds of a replica's device."""
    return resident.replica.vitals.device_bytes or 0


def _uuid(book: Budget) -> str:
    return book.device.uuid if book.device else ""
