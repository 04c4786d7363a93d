"""Life cycle of the replicas' processes: fork, connect, kill, exit."""

import asyncio
import contextlib
import signal
from pathlib import Path

from stoker.runtime.local.memory.memory import MemoryAllocator
from stoker.runtime.local.memory.replica_table import ReplicaTable, Resident
from stoker.runtime.local.memory.sizing import Sizing
from stoker.runtime.local.processes.engine_host import EngineHost
from stoker.runtime.local.processes.machine import KernelKills
from stoker.runtime.local.processes.sandboxes import Sandboxes
from stoker.runtime.metering import Meter
from stoker.runtime.pool.callbacks import ReplicaCallbacks
from stoker.runtime.pool.deployment_pool import DeploymentPool
from stoker.runtime.pool.handle import ReplicaHandle
from stoker.runtime.pool.transport import Channel
from stoker.wire import flight
from stoker.wire.protocol import ReplicaSpec


class FlightFile:
    """Flight record that a replica's process wrote on this machine."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read_slots(self) -> tuple[set[int], set[int]]:
        return flight.read_slots(self._path)

    def read_recording(self) -> str:
        return flight.read_recording(self._path)

    def remove(self) -> None:
        # The file is deleted with the replica's folder at the latest.
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)


class Processes:
    def __init__(
        self,
        *,
        host: EngineHost,
        cells: Sandboxes,
        residents: ReplicaTable,
        memory: MemoryAllocator,
        meter: Meter,
        sizing: Sizing,
    ) -> None:
        self.residents = residents
        self._host = host
        self._cells = cells
        self._memory = memory
        self._meter = meter
        self._sizing = sizing
        self._kernel_kills = KernelKills()
        self._killed: set[str] = set()

    def close(self) -> None:
        for resident in list(self.residents.values()):
            self._clean_up(resident)

    async def connect(
        self, replica_id: str, generation: int, callbacks: ReplicaCallbacks
    ) -> ReplicaHandle:
        """Returns the gateway's handle of a new replica as soon as the host can fork it."""
        await self._host.wait_ready()
        secret = self._cells.new_secret(replica_id)
        return ReplicaHandle(
            replica_id=replica_id,
            flight=FlightFile(self._cells.flight_path(replica_id)),
            generation=generation,
            channel=Channel(self._cells.address(replica_id), secret),
            callbacks=callbacks,
        )

    def fork(
        self, resident: Resident, replica_spec: ReplicaSpec, worker: str | None = None
    ) -> None:
        """Forks a replica. It is registered and billed until `exited`.

        Args:
            worker: id of the prepared worker that becomes the replica.
        """
        spec = resident.spec
        self.residents[resident.replica.id] = resident
        self._meter.begin(
            resident.replica.id,
            account_id=spec.account_id,
            deployment_id=spec.deployment,
            version_id=spec.version,
            model=spec.model,
            memory_bytes=spec.memory_bytes,
        )
        if worker:
            resident.is_prepared = True
            self._host.assign(worker, replica_spec)
        else:
            self._host.fork(replica_spec)

    def set_flex(self, replica_id: str, *, is_flex: bool) -> None:
        """Sets whether a replica's memory costs the price of background work from now on."""
        self._meter.set_flex(replica_id, is_flex=is_flex)

    def pid(self, replica_id: str) -> int | None:
        return self._host.pid(replica_id)

    def kill(self, replica_id: str) -> None:
        self._killed.add(replica_id)
        self._host.kill(replica_id)

    def look_for_kills(self) -> None:
        """Checks for kills by the kernel for lack of memory. Call it often, so that the time of a
        kill is known.
        """
        self._kernel_kills.look()

    def exited(self, replica_id: str, status: int) -> None:
        if resident := self.residents.get(replica_id):
            is_out_of_memory = self._ended_by_kernel(replica_id, status)
            try:
                # First, while the flight record exists: it names the requests that had begun.
                resident.pool.exited(resident.replica, status, out_of_memory=is_out_of_memory)
                if is_out_of_memory:
                    self._sizing.raise_estimate(resident)
            finally:
                # Its memory is free even if a step above failed.
                self._clean_up(resident)

    def _ended_by_kernel(self, replica_id: str, status: int) -> bool:
        """Returns True if the kernel killed the replica for lack of memory. False if the host
        ended, because all replicas end with it.
        """
        was_killed = status == -signal.SIGKILL and replica_id not in self._killed
        self._killed.discard(replica_id)
        return was_killed and self._host.ready and self._kernel_kills.just_now()

    def _clean_up(self, resident: Resident) -> None:
        self.residents.pop(resident.replica.id, None)
        self._meter.end(resident.replica.id)
        self._memory.release(resident.replica.id)
        resident.replica.close()
        self._cells.remove(resident.replica.id)

    async def wait_gone(self, seconds: float, pool: DeploymentPool | None = None) -> None:
        """Waits for stopping replicas of one pool or of all pools, then kills the remaining
        ones.
        """
        deadline = asyncio.get_running_loop().time() + seconds
        while remaining := [
            replica_id
            for replica_id, resident in self.residents.items()
            if pool is None or resident.pool is pool
        ]:
            if asyncio.get_running_loop().time() > deadline:
                for replica_id in remaining:
                    self._host.kill(replica_id)
                await asyncio.sleep(0.2)
                return
            await asyncio.sleep(0.02)
