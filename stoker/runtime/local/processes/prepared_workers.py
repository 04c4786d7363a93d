"""Prepared workers: processes that have opened a GPU before a model needs them.

A worker waits with its walls and its CUDA context until a replica starts in it. Its memory is
claimed, and released before any replica is evicted.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stoker.base.config import MIB, Settings
from stoker.base.ids import Prefix, new_id
from stoker.runtime.local.memory.budget import Budget
from stoker.runtime.local.memory.candidates import EvictionCandidate
from stoker.runtime.local.memory.device_sizing import DeviceSizing
from stoker.runtime.local.memory.devices import Device
from stoker.runtime.local.memory.memory import MemoryAllocator
from stoker.runtime.local.memory.replica_table import ReplicaTable
from stoker.runtime.local.processes.cores import most_preparation_processes
from stoker.runtime.local.processes.engine_host import EngineHost
from stoker.runtime.local.processes.gpu_sandbox import GpuSandbox
from stoker.runtime.local.processes.linked_models import link_model
from stoker.runtime.local.processes.machine import own_bytes
from stoker.runtime.local.processes.sandboxes import Sandboxes
from stoker.runtime.observed import Status
from stoker.sandbox import Opening
from stoker.wire.host_messages import WorkerReport
from stoker.wire.protocol import WorkerSpec

log = logging.getLogger(__name__)

QUIET_S = 3.0
"""Seconds without a start of a replica and without newly imported code before a worker is prepared.
"""
START_S = 60.0
"""Timeout of a worker's start in seconds. A driver may hang."""
RETRY_S = (30.0, 120.0, 600.0)
"""Delays in seconds after failures in a row on a device. No worker is prepared there after more
failures, until the device disappears and returns or the server starts again.
"""
_PROVED_S = 60.0
"""Seconds of waiting after which a worker's end does not count as a failure."""
MAIN_BYTES = 256 * MIB
"""Bytes of main memory that a worker claims until it was measured."""
_HEADROOM = 1.1


@dataclass(eq=False)
class PreparedWorker:
    id: str
    device: Device
    models: Path
    """Folder that the files of its model are linked into."""
    openings: Sequence[Opening]
    began: float
    is_ready: bool = False
    is_old: bool = False
    """True if the host has imported code since, which the worker lacks."""
    is_ending: bool = False


@dataclass
class _DeviceFailures:
    count: int = 0
    retry_at: float = 0.0
    problem: str = ""
    """Last logged problem."""


class PreparedWorkers:
    """Keeps some workers per GPU. All methods run on the event loop."""

    device = "cuda"
    """`WorkerSpec.device` of new workers."""

    def __init__(
        self,
        settings: Settings,
        *,
        host: EngineHost,
        memory: MemoryAllocator,
        cells: Sandboxes,
        residents: ReplicaTable,
        gpu_sandbox: GpuSandbox,
        sizing: DeviceSizing,
        cores: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most = settings.gpu_prepared_workers if memory.devices else 0
        self._preparation_processes = most_preparation_processes(
            settings.preparation_processes, cores, is_on_device=True
        )
        self._host = host
        self._memory = memory
        self._cells = cells
        self._residents = residents
        self._gpu_sandbox = gpu_sandbox
        self._sizing = sizing
        self._clock = clock
        self._workers: dict[str, PreparedWorker] = {}
        self._failures: dict[str, _DeviceFailures] = {}
        """Maps the UUID of a device to its failures in a row."""
        self._busy_at = -math.inf
        """Time of the last start of a replica, or of newly imported code."""
        host.listen(self.prepared, self.code_imported)

    def pids(self, uuid: str) -> Mapping[str, int]:
        """Maps the ready workers of a device to their process ids."""
        return {
            worker.id: self._host.pid(worker.id) or 0
            for worker in self._workers.values()
            if worker.is_ready and worker.device.uuid == uuid
        }

    @property
    def is_enabled(self) -> bool:
        """True if this machine has GPUs for which workers are prepared."""
        return self._most > 0

    # --- upkeep ---

    def tick(self) -> None:
        """Ends workers that are of no use, and prepares missing ones in a quiet moment."""
        if not self._most:
            return
        self._end_useless()
        openings = self._gpu_sandbox.known_openings
        if openings is None or not self._may_prepare():
            return
        for book in self._memory.devices:
            if book.device and book.total and self._lacks_worker(book.device):
                self._prepare(book, book.device, openings)

    def prepared(self, event: WorkerReport) -> None:
        """Handles a worker's report that it waits, or why it cannot."""
        worker = self._workers.get(event.worker_id)
        if worker is None or worker.is_ending:
            return
        if event.problem:
            self._failed(worker.device, event.problem)
            self._end(worker)
            return
        worker.is_ready = True
        self._memory.prepared.mark_usable(worker.id, is_usable=not worker.is_old)
        self._measure(worker)
        self._memory.settle()

    def code_imported(self) -> None:
        """Marks all workers as old: they were forked without the new code."""
        self._busy_at = self._clock()
        for worker in self._workers.values():
            worker.is_old = True
            self._memory.prepared.mark_usable(worker.id, is_usable=False)

    def exited(self, worker_id: str) -> None:
        """Handles the end of a worker's process. Ignores ids of other processes."""
        worker = self._workers.pop(worker_id, None)
        if worker is None:
            return
        # If the host has ended, all of its processes have.
        if not worker.is_ending and self._host.ready:
            if worker.is_ready and self._clock() - worker.began > _PROVED_S:
                self._failures.pop(worker.device.uuid, None)
            self._failed(worker.device, "its process has ended")
        self._memory.release(worker.id)
        self._cells.remove(worker.id)

    # --- evictions (see `BackgroundWork`) ---

    def evictable(self) -> Iterable[EvictionCandidate]:
        return [
            EvictionCandidate(worker.id, is_warm=False, since=worker.began, is_prepared=True)
            for worker in self._workers.values()
            if not worker.is_ending
        ]

    def evict(self, job_id: str) -> None:
        if worker := self._workers.get(job_id):
            # An optional claim gets the memory only after the worker has ended.
            self._busy_at = self._clock()
            self._end(worker)

    # --- replicas ---

    async def take(
        self, replica_id: str, folder: Path, openings: Sequence[Opening], *, is_plain: bool
    ) -> PreparedWorker | None:
        """Links the model into the folder of the worker that a replica's claim has replaced.

        Returns None if the replica needs a new process.

        Args:
            is_plain: False if the replica needs something that a worker cannot get.
        """
        self._busy_at = self._clock()
        worker = self._workers.get(self._memory.prepared.worker(replica_id) or "")
        if worker is None or worker.is_ending:
            self._memory.prepared.forget(replica_id)
            return None
        if is_plain and [*worker.openings] == [*openings]:
            try:
                await asyncio.to_thread(link_model, folder, worker.models)
            except OSError as error:
                log.info("model cannot be linked for a prepared worker: %s", error)
            except asyncio.CancelledError:
                self.abandon(replica_id, worker)
                raise
            else:
                if self._workers.get(worker.id) is worker:
                    return worker
        # The folder may contain a part of this model, so no other replica may start there.
        self.abandon(replica_id, worker)
        return None

    def started(self, replica_id: str, worker: PreparedWorker) -> None:
        """Records that a worker's process is a replica from now on."""
        self._failures.pop(worker.device.uuid, None)
        self._workers.pop(worker.id, None)
        self._memory.prepared.forget(replica_id)

    def abandon(self, replica_id: str, worker: PreparedWorker) -> None:
        """Ends a worker that was taken for a replica. It holds its memory until it has ended."""
        self._memory.prepared.give_back(replica_id)
        if self._workers.get(worker.id) is worker:
            self._end(worker)

    # --- details ---

    def _end_useless(self) -> None:
        present = {book.device.uuid for book in self._memory.devices if book.device and book.total}
        for uuid in self._failures.keys() - present:
            del self._failures[uuid]
        for worker in [*self._workers.values()]:
            if worker.is_ending:
                continue
            if not worker.is_ready and not self._host.pid(worker.id):
                # The host forks it after its imports. If the host hangs, it is ended.
                worker.began = self._clock()
            age = self._clock() - worker.began
            if not worker.is_ready and age > START_S:
                self._failed(worker.device, f"it was not ready in {START_S:g} s")
                self._end(worker)
            elif worker.device.uuid not in present or (worker.is_old and self._is_quiet()):
                self._end(worker)

    def _may_prepare(self) -> bool:
        can_fork = self._host.ready and (self.device == "cpu" or not self._host.cuda_problem)
        return can_fork and self._is_quiet() and not self._memory.is_short

    def _is_quiet(self) -> bool:
        if any(each.replica.status is Status.STARTING for each in self._residents.values()):
            self._busy_at = self._clock()
        return self._clock() - self._busy_at >= QUIET_S

    def _lacks_worker(self, device: Device) -> bool:
        failures = self._failures.get(device.uuid)
        if failures and self._clock() < failures.retry_at:
            return False
        # A worker that is about to end still holds its memory.
        here = [each for each in self._workers.values() if each.device.uuid == device.uuid]
        return len(here) < self._most and all(each.is_ready for each in here)

    def _prepare(self, book: Budget, device: Device, openings: Sequence[Opening]) -> None:
        worker_id = new_id(Prefix.WORKER)
        size = self._sizing.context_bytes(device.kind)
        if self._memory.is_short or not self._memory.prepared.enter(
            worker_id, book, size, MAIN_BYTES
        ):
            return
        try:
            cell = self._cells.make(worker_id)
            models = self._cells.make_models(worker_id)
        except OSError as error:
            self._memory.release(worker_id)
            self._cells.remove(worker_id)
            self._failed(device, f"its folders could not be created: {error}")
            return
        self._workers[worker_id] = PreparedWorker(
            worker_id, device, models, openings, self._clock()
        )
        self._host.prepare(
            WorkerSpec(
                id=worker_id,
                device=self.device,
                visible_devices=device.uuid,
                cell=cell,
                models=str(models),
                preparation_processes=self._preparation_processes,
                openings=[*openings],
            )
        )

    def _end(self, worker: PreparedWorker) -> None:
        worker.is_ending = True
        self._memory.ending(worker.id)
        self._host.kill(worker.id)

    def _failed(self, device: Device, problem: str) -> None:
        failures = self._failures.setdefault(device.uuid, _DeviceFailures())
        delays = [*RETRY_S, math.inf]
        failures.retry_at = self._clock() + delays[min(failures.count, len(RETRY_S))]
        failures.count += 1
        if problem != failures.problem:
            failures.problem = problem
            log.warning(
                "no prepared worker on GPU %d, so replicas start later: %s",
                device.index,
                problem,
            )

    def _measure(self, worker: PreparedWorker) -> None:
        """Replaces the estimate of a worker's main memory. Pages of the host are shared."""
        pid = self._host.pid(worker.id)
        held, inherited = own_bytes(pid) if pid else None, own_bytes(self._host.own_pid)
        if held is not None and inherited is not None:
            self._memory.main.resize(worker.id, int(max(held - inherited, MIB) * _HEADROOM))
