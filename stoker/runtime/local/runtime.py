"""Local runtime: replicas are processes of this machine, forked by an engine host."""

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from stoker.base.config import Settings
from stoker.runtime.interface import KEEP_ALIVE, Call, LoadError, ModelLocator, OnProgress
from stoker.runtime.listening import Listeners, RuntimeListener
from stoker.runtime.local.automatic_engine import AutomaticEngine
from stoker.runtime.local.compiled_code import CompiledCode
from stoker.runtime.local.conversions.conversions import Conversions
from stoker.runtime.local.conversions.preparations import Preparations
from stoker.runtime.local.forking import ForkingLauncher
from stoker.runtime.local.memory.device_sizing import DeviceSizing
from stoker.runtime.local.memory.device_watch import DeviceWatch
from stoker.runtime.local.memory.device_weights import read_weights
from stoker.runtime.local.memory.devices import Devices, DriverDevices
from stoker.runtime.local.memory.measurements import Measurements
from stoker.runtime.local.memory.memory import MemoryAllocator
from stoker.runtime.local.memory.replica_table import ReplicaTable
from stoker.runtime.local.memory.sizing import Sizing
from stoker.runtime.local.processes.checkpoints import Checkpoints, DriverCheckpoints
from stoker.runtime.local.processes.cores import Cores
from stoker.runtime.local.processes.engine_host import EngineHost
from stoker.runtime.local.processes.gpu_sandbox import GpuSandbox
from stoker.runtime.local.processes.log_files import LogFiles
from stoker.runtime.local.processes.machine import host_id, processor_name
from stoker.runtime.local.processes.memory_watchdog import MemoryWatchdog
from stoker.runtime.local.processes.prepared_workers import PreparedWorkers
from stoker.runtime.local.processes.processes import Processes
from stoker.runtime.local.processes.sandboxes import Sandboxes
from stoker.runtime.local.starter import ReplicaStarter
from stoker.runtime.local.supervision import Supervision
from stoker.runtime.machine_memory import budget_bytes, machine_bytes
from stoker.runtime.metering import Meter
from stoker.runtime.observed import (
    DeploymentStats,
    MachineStats,
    NodeStats,
    Reason,
    WaitingForMemory,
)
from stoker.runtime.pool.deployment_pool import DeploymentPool
from stoker.runtime.pool.launcher import Limits
from stoker.runtime.pool.registry import PoolRegistry
from stoker.runtime.specification import DeploymentSpec, Readiness
from stoker.wire.generation_request import Generation
from stoker.wire.host_messages import Preload

log = logging.getLogger(__name__)


class LocalRuntime:
    is_remote = False

    def __init__(
        self,
        settings: Settings,
        folders: ModelLocator,
        unfunded: Callable[[], Collection[str]] = frozenset[str],
        devices: Devices | None = None,
        checkpoints: Checkpoints | None = None,
    ) -> None:
        """
        Args:
            unfunded: returns the accounts that cannot pay to keep replicas loaded.
            devices: the machine's GPUs. None means the driver's devices.
            checkpoints: moves GPU memory to main memory. None means the driver's way.
        """
        data_dir = settings.data_dir.resolve()
        self._preloads = settings.preload
        self._sleeps = settings.gpu_sleep
        self._limits = Limits.from_settings(settings)
        self._listeners, self._meter = Listeners(), Meter()
        self._logs = LogFiles(data_dir / "logs")
        self._pools, self._residents = PoolRegistry(), ReplicaTable()
        devices = devices or DriverDevices()
        table = devices.table()
        self._memory = MemoryAllocator(
            budget_bytes(settings.memory_budget_mib),
            self._residents,
            hot_share=settings.hot_memory_share,
            devices=table,
            device_share=settings.gpu_memory_share,
        )
        findings = Measurements(data_dir / "cache")
        largest = max((book.total for book in self._memory.devices), default=0)
        self._device_sizing = device_sizing = DeviceSizing(settings, findings, largest)
        self._sizing = Sizing(self._memory, device_sizing, self._meter, self._listeners)
        self._host = EngineHost(self._logs.host, self._exited, on_skipped=self._preload_skipped)
        self._preparations = Preparations(folders, self._host, self._lacks_files, self._weigh)
        cores = len(os.sched_getaffinity(0))
        threads = settings.replica_threads or cores
        self._cells = Sandboxes(settings)
        self._gpu_sandbox = GpuSandbox(settings, self._cells)
        self._prepared = PreparedWorkers(
            settings,
            host=self._host,
            memory=self._memory,
            cells=self._cells,
            residents=self._residents,
            gpu_sandbox=self._gpu_sandbox,
            sizing=device_sizing,
            cores=cores,
        )
        self._device_watch = DeviceWatch(
            devices,
            first=table,
            memory=self._memory,
            sizing=device_sizing,
            residents=self._residents,
            pid=self._host.pid,
            prepared=self._prepared.pids,
        )
        self._conversions = Conversions(
            folder=data_dir / "cache" / "openvino",
            log_path=self._logs.conversions,
            host=self._host,
            cells=self._cells,
            after_s=settings.convert_after_s,
            media=settings.media_limits,
            threads=threads,
            limits=self._limits,
            memory=self._memory,
            on_quarantined=self._quarantine,
        )
        self._residents.backgrounds = [self._conversions, self._prepared]
        self._processes = Processes(
            host=self._host,
            cells=self._cells,
            residents=self._residents,
            memory=self._memory,
            meter=self._meter,
            sizing=self._sizing,
        )
        self._checkpoints = checkpoints or DriverCheckpoints()
        self._compiled = CompiledCode(data_dir)
        engines = AutomaticEngine(settings, has_devices=bool(self._memory.devices))
        starter = ReplicaStarter(
            settings,
            folders=folders,
            pools=self._pools,
            memory=self._memory,
            cells=self._cells,
            processes=self._processes,
            conversions=self._conversions,
            compiled=self._compiled,
            findings=findings,
            device_sizing=device_sizing,
            engines=engines,
            gpu_sandbox=self._gpu_sandbox,
            device_watch=self._device_watch,
            prepared=self._prepared,
            logs=self._logs,
            threads=threads,
            cores=cores,
        )
        self._launcher = ForkingLauncher(
            unfunded=unfunded,
            pools=self._pools,
            memory=self._memory,
            cells=self._cells,
            processes=self._processes,
            conversions=self._conversions,
            findings=findings,
            sizing=self._sizing,
            device_sizing=device_sizing,
            engines=engines,
            starter=starter,
            logs=self._logs,
            checkpoints=self._checkpoints,
        )
        self._residents.can_sleep = self._launcher.can_sleep
        self._supervision = Supervision(
            pools=self._pools,
            residents=self._residents,
            memory=self._memory,
            sizing=self._sizing,
            findings=findings,
            conversions=self._conversions,
            cores=Cores(self._residents, self._host.pid, cores=cores),
            host=self._host,
            processes=self._processes,
            watchdog=MemoryWatchdog(self._host, self._residents, self._memory),
            prepared=self._prepared,
            cells=self._cells,
            logs=self._logs,
        )
        self._machine = MachineStats(
            host=host_id(),
            cores=cores,
            processor=processor_name(),
            total_bytes=machine_bytes(),
            budget_bytes=self._memory.main.total,
        )
        self._background: set[asyncio.Task[None]] = set()

    async def start(self, listeners: Sequence[RuntimeListener]) -> None:
        self._listeners.add(*listeners)
        self._cells.open()
        if self._preloads:
            self._host.start()
        for work in self._supervision.loops():
            self._spawn(work)
        if self._memory.devices:
            self._spawn(self._device_watch.run(self._reserve_again))
            if self._sleeps:
                self._spawn(self._checkpoints.start())
        self._spawn(self._gpu_sandbox.prepare())
        self._spawn(self._preparations.run())

    async def stop(self) -> None:
        for pool in self._pools:
            pool.stop(Reason.SERVER_STOPPING)
        await self._processes.wait_gone(self._limits.stop_grace_s)
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        await self._host.stop()
        self._processes.close()
        await self._checkpoints.close()
        self._cells.close()

    # --- deployments ---

    def apply(self, spec: DeploymentSpec, *, running: bool) -> None:
        pool = self._pools.get(spec.id)
        spec = self._sizing.with_memory(spec, pool.spec if pool else None)
        if pool is None:
            pool = DeploymentPool(
                spec=spec,
                running=running,
                launcher=self._launcher,
                limits=self._limits,
                listener=self._listeners,
            )
            self._pools.add(pool)
        self._sizing.reserve(spec, running=running)
        if running:
            self._host.start()
            self._preparations.add(spec)
        self._pools.mark_due(spec.id)
        pool.apply(spec, running=running)
        if self._device_sizing.has_weights(spec.source):
            self._sizing.refuse_too_large(pool)

    def check_fits(self, spec: DeploymentSpec) -> None:
        if spec.readiness is Readiness.HOT:
            is_alone = all(pool.spec.account_id == spec.account_id for pool in self._pools)
            self._sizing.check_fits(spec, is_alone=is_alone)

    def check_beside(self, spec: DeploymentSpec, live_id: str) -> None:
        if live := self._pools.get(live_id):
            self._sizing.check_beside(spec, live.spec)

    async def remove(self, spec_id: str) -> None:
        self._sizing.forget(spec_id)
        deployment_id = spec_id
        if pool := self._pools.pop(spec_id):
            deployment_id = pool.spec.deployment
            pool.stop(Reason.STOPPED_BY_USER)
            await self._processes.wait_gone(self._limits.stop_grace_s, pool)
            source = pool.spec.source
            if all(other.spec.source != source for other in self._pools):
                self._conversions.forget(source)
                self._preparations.forget(source)
                self._launcher.forget(source)
        await self._compiled.remove(spec_id)
        if all(other.spec.deployment != deployment_id for other in self._pools):
            self._meter.forget(deployment_id)
            self._logs.remove(deployment_id)

    async def sweep_strays(self) -> None:
        logs = await asyncio.to_thread(self._logs.deployments)
        for deployment_id in logs - {pool.spec.deployment for pool in self._pools}:
            self._logs.remove(deployment_id)
        await self._compiled.remove_others({pool.spec.id for pool in self._pools})

    # --- calls ---

    def call(
        self,
        spec_id: str,
        call: Call | Generation,
        *,
        wait_s: float,
        timeout_s: float,
        on_progress: OnProgress | None = None,
    ) -> Coroutine[Any, Any, bytes]:
        pool = self._pools.find(spec_id)
        return pool.call(call, wait_s=wait_s, timeout_s=timeout_s, on_progress=on_progress)

    def stream(
        self,
        spec_id: str,
        call: Call | Generation,
        *,
        wait_s: float,
        timeout_s: float,
        keep_alive: bytes = KEEP_ALIVE,
    ) -> AsyncGenerator[bytes]:
        pool = self._pools.find(spec_id)
        return pool.stream(call, wait_s=wait_s, timeout_s=timeout_s, keep_alive=keep_alive)

    # --- observations ---

    def stats(self, spec_id: str) -> DeploymentStats | None:
        pool = self._pools.get(spec_id)
        return pool.stats() if pool else None

    def machine(self) -> MachineStats:
        waiting: list[WaitingForMemory] = []
        for spec_id, need, reason in self._memory.waiting():
            if pool := self._pools.get(spec_id):
                spec = pool.spec
                waiting.append(
                    WaitingForMemory(
                        deployment_id=spec.deployment,
                        account_id=spec.account_id,
                        model=spec.model,
                        memory_bytes=need,
                        reason=reason,
                    )
                )
        return replace(
            self._machine,
            held_bytes=self._memory.main.held,
            used_bytes=sum(
                resident.replica.vitals.memory_bytes or 0 for resident in self._residents.values()
            ),
            reserved_bytes=self._memory.main.reserved,
            waiting=waiting,
            devices=self._memory.device_stats(),
            device_problem=self._device_watch.problem,
            sandbox_openings=self._gpu_sandbox.in_words,
        )

    def nodes(self) -> Sequence[NodeStats]:
        return ()

    def at_work(self, besides: str) -> bool:
        return any(pool.calls and pool.spec.id != besides for pool in self._pools)

    async def log_lines(self, deployment_id: str, limit: int) -> list[str]:
        return await asyncio.to_thread(self._logs.tail, deployment_id, limit)

    @property
    def meter(self) -> Meter:
        return self._meter

    def why_not_ready(self) -> str | None:
        if self._host.ready or not self._host.started:
            return None
        return "The engine host is still importing its libraries."

    def check(self) -> str | None:
        return self._host.problem

    # --- supervision ---

    def _reserve_again(self) -> None:
        """Reserves memory on other devices after some have disappeared."""
        for pool in self._pools:
            self._sizing.reserve(pool.spec, running=pool.running)

    async def _weigh(self, spec: DeploymentSpec, folder: Path) -> None:
        """Reads the size of a model's weights, if it may run on a GPU."""
        if self._device_sizing.wanted(spec) and (
            weights := await asyncio.to_thread(read_weights, folder)
        ):
            self._device_sizing.keep_weights(spec.source, weights)
            for pool in self._pools:
                if pool.spec.source == spec.source:
                    self._sizing.refuse_too_large(pool)

    def _preload_skipped(self, code: Preload, why: str) -> None:
        """Adds an event to each deployment whose model needs code that was not preloaded."""
        sources = self._preparations.skip(code)
        message = (
            f"The code of '{code.name}' is not imported ahead of time, because replicas could not "
            f"use CUDA after it: {why.rstrip('.')}. Replicas import it themselves and start later."
        )
        for pool in self._pools:
            if pool.spec.source in sources:
                pool.add_event(Reason.PRELOAD_SKIPPED, message)

    def _lacks_files(self, source: str, problem: LoadError) -> None:
        """Reports a failed start for each deployment of a source with missing files."""
        for pool in self._pools:
            if pool.spec.source == source and pool.lacks_files(problem):
                log.error(
                    "model files are missing: %s",
                    problem,
                    extra={"deployment": pool.spec.deployment},
                )
                self._logs.append(pool.spec.deployment, f"- ERROR not started: {problem}")

    def _quarantine(self, spec_id: str, message: str) -> None:
        if pool := self._pools.get(spec_id):
            pool.add_event(Reason.ENGINE_SET_ASIDE, message)

    def _exited(self, process_id: str, status: int) -> None:
        """Handles the end of one of the host's processes: a replica, a prepared worker, a
        conversion or a trial.
        """
        self._processes.exited(process_id, status)
        self._prepared.exited(process_id)
        self._conversions.exited(process_id, status)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        self._background.add(task := asyncio.create_task(work))
        task.add_done_callback(self._background.discard)
        return task
