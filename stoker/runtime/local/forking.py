"""Implements `Launcher` on this machine: claims, sleep, and processes."""

from collections.abc import Callable, Collection, Sequence

from stoker.base.errors import CapacityError
from stoker.base.ids import Prefix, new_id
from stoker.runtime.interface import LoadError
from stoker.runtime.local.automatic_engine import AutomaticEngine
from stoker.runtime.local.conversions.conversions import Conversions
from stoker.runtime.local.memory.device_sizing import DeviceSizing
from stoker.runtime.local.memory.devices import Device, DeviceNeed
from stoker.runtime.local.memory.measurements import Measurements
from stoker.runtime.local.memory.memory import MemoryAllocator, ReplicaEndedError
from stoker.runtime.local.memory.replica_table import Resident
from stoker.runtime.local.memory.sizing import Sizing
from stoker.runtime.local.own_sleep import OwnSleep
from stoker.runtime.local.processes.checkpoints import Checkpoints
from stoker.runtime.local.processes.log_files import LogFiles
from stoker.runtime.local.processes.processes import Processes
from stoker.runtime.local.processes.sandboxes import Sandboxes
from stoker.runtime.local.starter import ReplicaStarter
from stoker.runtime.observed import DeviceClaim
from stoker.runtime.pool.handle import ReplicaHandle
from stoker.runtime.pool.launcher import SleepError
from stoker.runtime.pool.registry import PoolRegistry
from stoker.runtime.specification import DeploymentSpec
from stoker.wire.protocol import Execution


class ForkingLauncher:
    """Implements `Launcher` on this machine."""

    def __init__(
        self,
        *,
        unfunded: Callable[[], Collection[str]],
        pools: PoolRegistry,
        memory: MemoryAllocator,
        cells: Sandboxes,
        processes: Processes,
        conversions: Conversions,
        findings: Measurements,
        sizing: Sizing,
        device_sizing: DeviceSizing,
        engines: AutomaticEngine,
        starter: ReplicaStarter,
        logs: LogFiles,
        checkpoints: Checkpoints,
    ) -> None:
        self._unfunded = unfunded
        self._pools = pools
        self._memory = memory
        self._cells = cells
        self._processes = processes
        self._conversions = conversions
        self._findings = findings
        self._sizing = sizing
        self._device_sizing = device_sizing
        self._engines = engines
        self._starter = starter
        self._logs = logs
        self._checkpoints = checkpoints
        self._own_sleep = OwnSleep(memory, device_sizing)

    def forget(self, source: str) -> None:
        """Deletes the measurements of a model that no deployment uses any more."""
        self._findings.forget(source)
        self._device_sizing.forget(source)
        self._engines.forget(source)

    # --- memory ---

    async def claim(self, spec: DeploymentSpec, *, is_needed: bool) -> str | None:
        replica_id = new_id(Prefix.REPLICA)
        self._pools.mark_due(spec.id)
        need, device_need = self._sizing.need(spec), self._device_need(spec)
        if is_needed:
            await self._memory.claim(replica_id, need, device_need)
        elif not self._memory.take(replica_id, need, device_need):
            return None
        return replica_id

    def has_room(self, spec: DeploymentSpec) -> bool:
        return self._memory.has_room(self._sizing.need(spec), self._device_need(spec))

    def shortage(self, spec: DeploymentSpec) -> str:
        return self._memory.shortage(self._sizing.need(spec), self._device_need(spec))

    def ending(self, replica_id: str) -> None:
        self._memory.ending(replica_id)

    def is_funded(self, spec: DeploymentSpec) -> bool:
        return spec.account_id not in self._unfunded()

    def _device_need(self, spec: DeploymentSpec) -> DeviceNeed | None:
        return self._device_sizing.wanted(self._engines.on_device(spec))

    # --- sleep ---

    def can_sleep(self, resident: Resident) -> bool:
        """Returns True if a replica's GPU memory can be moved to main memory: by its engine if that
        runs in a child process, otherwise by the driver.
        """
        if resident.is_apart:
            return resident.replica.sleep_bytes is not None
        return self._checkpoints.is_supported

    async def sleep(self, replica_id: str) -> None:
        pid = self._living(replica_id)
        resident = self._processes.residents.get(replica_id)
        if resident and resident.is_apart:
            await self._own_sleep.sleep(resident)
        else:
            await self._checkpoints.sleep(pid)
            self._memory.leave_devices(replica_id)

    async def wake(self, replica_id: str) -> None:
        pid = self._living(replica_id)
        resident = self._processes.residents.get(replica_id)
        if resident and resident.is_apart:
            await self._own_sleep.wake(resident)
        else:
            await self._checkpoints.wake(pid)
            self._memory.woke_up(replica_id)

    async def claim_device(self, spec: DeploymentSpec, replica_id: str, *, is_needed: bool) -> bool:
        try:
            if not is_needed:
                return self._memory.take_device(replica_id, spec.id, spec.account_id)
            await self._memory.claim_device(replica_id, spec.id, spec.account_id)
        except CapacityError as error:
            raise SleepError(error.message) from error
        except ReplicaEndedError:
            raise SleepError("its process has ended") from None
        return True

    def has_device_room(self, spec: DeploymentSpec, replica_id: str) -> bool:
        return self._memory.has_device_room(replica_id, spec.id, spec.account_id)

    def _living(self, replica_id: str) -> int:
        pid = self.pid(replica_id)
        if pid is None:
            raise SleepError("its process has ended")
        return pid

    # --- processes ---

    async def launch(self, spec: DeploymentSpec, generation: int, replica_id: str) -> ReplicaHandle:
        try:
            return await self._starter.start(spec, generation, replica_id)
        except BaseException as error:
            if replica_id not in self._processes.residents:
                self._memory.release(replica_id)
                self._cells.remove(replica_id)
            if isinstance(error, Exception):
                # No replica exists that could write this line.
                why = str(error) if isinstance(error, LoadError) else _FAULT
                self._logs.append(spec.deployment, f"{replica_id} ERROR not started: {why}")
            raise

    def set_flex(self, replica_id: str, *, is_flex: bool) -> None:
        self._processes.set_flex(replica_id, is_flex=is_flex)

    def quarantine(self, execution: Execution, reason: str) -> str:
        return self._conversions.quarantine(execution, reason)

    def kill(self, replica_id: str) -> None:
        self._processes.kill(replica_id)

    def devices(self, replica_id: str) -> Sequence[DeviceClaim]:
        resident = self._processes.residents.get(replica_id)
        return [
            DeviceClaim(
                index=device.index,
                uuid=device.uuid,
                name=device.name,
                held_bytes=held_bytes,
                used_bytes=self._used_bytes(resident, device) if resident else None,
            )
            for device, held_bytes in self._memory.devices_of(replica_id)
        ]

    def pid(self, replica_id: str) -> int | None:
        return self._processes.pid(replica_id)

    def _used_bytes(self, resident: Resident, device: Device) -> int | None:
        """Returns the measured bytes of a replica on its device, with CUDA's context."""
        if not (reserved := resident.replica.vitals.device_bytes):
            return None
        context = resident.device_context
        return reserved + (
            self._device_sizing.context_bytes(device.kind) if context is None else context
        )


_FAULT = "an internal error occurred. See the server's log."
