"""Periodic checks of the runtime: pools, processes, memory, measurements and log files."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any

from stoker.runtime.local.conversions.conversions import Conversions
from stoker.runtime.local.memory.measurements import Measurements
from stoker.runtime.local.memory.memory import MemoryAllocator
from stoker.runtime.local.memory.replica_table import ReplicaTable, Resident
from stoker.runtime.local.memory.sizing import Sizing
from stoker.runtime.local.processes.cores import Cores
from stoker.runtime.local.processes.engine_host import EngineHost
from stoker.runtime.local.processes.log_files import LogFiles
from stoker.runtime.local.processes.memory_watchdog import FOLDERS_S, LOOK_S, MemoryWatchdog
from stoker.runtime.local.processes.prepared_workers import PreparedWorkers
from stoker.runtime.local.processes.processes import Processes
from stoker.runtime.local.processes.sandboxes import Sandboxes
from stoker.runtime.observed import Status
from stoker.runtime.pool.registry import PoolRegistry

log = logging.getLogger(__name__)

TICK_S = 0.5
REST_S = 5.0
"""Seconds between two checks while no deployment has a replica or needs one."""
FINDINGS_S = 10.0
"""Seconds between two attempts to write measurements after a failed write."""


class Supervision:
    def __init__(
        self,
        *,
        pools: PoolRegistry,
        residents: ReplicaTable,
        memory: MemoryAllocator,
        sizing: Sizing,
        findings: Measurements,
        conversions: Conversions,
        cores: Cores,
        host: EngineHost,
        processes: Processes,
        watchdog: MemoryWatchdog,
        prepared: PreparedWorkers,
        cells: Sandboxes,
        logs: LogFiles,
    ) -> None:
        self._pools = pools
        self._residents = residents
        self._memory = memory
        self._sizing = sizing
        self._findings = findings
        self._findings_written_at = 0.0
        self._conversions = conversions
        self._cores = cores
        self._host = host
        self._processes = processes
        self._watchdog = watchdog
        self._prepared = prepared
        self._cells = cells
        self._logs = logs
        self._cutting: asyncio.Task[None] | None = None

    def loops(self) -> list[Coroutine[Any, Any, None]]:
        """Returns the loops to run until the runtime stops."""
        return [self._supervise(), self._watch_memory(), self._watch_folders()]

    async def _supervise(self) -> None:
        try:
            while True:
                self._check_all()
                await asyncio.sleep(TICK_S)
                if self._is_at_rest():
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(REST_S):
                            await self._pools.has_due.wait()
        finally:
            if self._cutting:
                self._cutting.cancel()

    def _is_at_rest(self) -> bool:
        """Returns True if only a deployment that becomes due can cause work."""
        is_busy = self._memory.is_short or self._conversions.is_busy or self._prepared.is_enabled
        return not (self._pools.due or self._residents or is_busy)

    def _check_all(self) -> None:
        for step in (
            self._pools.tick,
            self._look_at_residents,
            self._conversions.kill_hung,
            self._cores.look,
            self._host.look,
            self._processes.look_for_kills,
            self._memory.settle,
            self._prepared.tick,
            self._cut_logs,
            self._write_findings,
        ):
            _attempt(step)

    async def _watch_memory(self) -> None:
        while True:
            _attempt(self._watchdog.look)
            await asyncio.sleep(LOOK_S)
            if not self._residents:
                await self._pools.has_due.wait()

    def _look_at_residents(self) -> None:
        for resident in self._conversions.in_turn(self._residents.values()):
            self._offer(resident)
            self._sizing.measure(resident)

    def _write_findings(self) -> None:
        now = time.monotonic()
        if now - self._findings_written_at > FINDINGS_S:
            self._findings_written_at = now
            self._findings.write_unwritten()

    async def _watch_folders(self) -> None:
        while True:
            try:
                await self._watchdog.look_at_folders(self._cells.folder)
            except Exception:
                log.exception("replicas' folders could not be checked; retrying")
            await asyncio.sleep(FOLDERS_S)

    def _offer(self, resident: Resident) -> None:
        replica, spec, pool = resident.replica, resident.spec, resident.pool
        if replica.status is not Status.READY or not spec.runs_like(pool.spec):
            return
        if resident.is_prepared:
            return
        self._conversions.offer(replica, spec, resident.model_dir, resident.conversion)
        if problem := self._conversions.problem(spec, resident.conversion):
            pool.fail_engine(problem)

    def _cut_logs(self) -> None:
        """Cuts the long log files of all running replicas and of the host."""
        deployments = {resident.spec.deployment for resident in self._residents.values()}
        long = self._logs.long(deployments)
        if long and (self._cutting is None or self._cutting.done()):
            self._cutting = asyncio.create_task(self._logs.cut_all(long))


def _attempt(step: Callable[[], object]) -> None:
    """Runs a step of the supervision, which must continue even if the step fails."""
    try:
        step()
    except Exception:
        log.exception("replica supervision step failed; retrying")
