"""Starts a replica that has its memory: chooses its device, files and settings, and forks it."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import msgspec

from stoker.base.config import MIB, Settings
from stoker.models.engines import environments
from stoker.models.engines.record import AUTO
from stoker.models.llm.engines.memory import most_cache_bytes
from stoker.runtime.graphics import graphics_of, needs_device
from stoker.runtime.interface import LoadError, ModelLocator
from stoker.runtime.local.automatic_engine import AutomaticEngine
from stoker.runtime.local.compiled_code import CompiledCode
from stoker.runtime.local.conversions.conversions import Conversions
from stoker.runtime.local.memory.claims import Need
from stoker.runtime.local.memory.device_sizing import DeviceSizing
from stoker.runtime.local.memory.device_watch import DeviceWatch
from stoker.runtime.local.memory.device_weights import read_weights
from stoker.runtime.local.memory.devices import visible
from stoker.runtime.local.memory.measurements import Measurements
from stoker.runtime.local.memory.memory import MemoryAllocator
from stoker.runtime.local.memory.replica_table import Resident
from stoker.runtime.local.processes.cores import most_preparation_processes
from stoker.runtime.local.processes.gpu_sandbox import GpuSandbox
from stoker.runtime.local.processes.log_files import LogFiles
from stoker.runtime.local.processes.prepared_workers import PreparedWorker, PreparedWorkers
from stoker.runtime.local.processes.processes import Processes
from stoker.runtime.local.processes.sandboxes import Sandboxes
from stoker.runtime.local.start_plan import StartPlan, begins_converted, check_served
from stoker.runtime.observed import Reason
from stoker.runtime.pool.callbacks import ReplicaCallbacks
from stoker.runtime.pool.handle import ReplicaHandle
from stoker.runtime.pool.registry import PoolRegistry
from stoker.runtime.pool.vitals import idle_heartbeat_s
from stoker.runtime.specification import DeploymentSpec
from stoker.wire.notices import Notice
from stoker.wire.passes import MOST_LOST
from stoker.wire.protocol import ChosenPrecision, OwnEnvironment, ReplicaSpec, Sharing

FEW_CORES = 8
"""Maximum number of cores for which replicas that use all cores compute in turn. This was measured
on two cores. A small model's pass cannot use many cores, so two passes at once may be faster there.
"""


class ReplicaStarter:
    def __init__(
        self,
        settings: Settings,
        *,
        folders: ModelLocator,
        pools: PoolRegistry,
        memory: MemoryAllocator,
        cells: Sandboxes,
        processes: Processes,
        conversions: Conversions,
        compiled: CompiledCode,
        findings: Measurements,
        device_sizing: DeviceSizing,
        engines: AutomaticEngine,
        gpu_sandbox: GpuSandbox,
        device_watch: DeviceWatch,
        prepared: PreparedWorkers,
        logs: LogFiles,
        threads: int,
        cores: int,
    ) -> None:
        """
        Args:
            threads: number of CPU threads of each replica's engine.
            cores: number of cores that this server may use.
        """
        self._settings = settings
        self._folders = folders
        self._pools = pools
        self._memory = memory
        self._cells = cells
        self._processes = processes
        self._conversions = conversions
        self._compiled = compiled
        self._findings = findings
        self._device_sizing = device_sizing
        self._engines = engines
        self._gpu_sandbox = gpu_sandbox
        self._device_watch = device_watch
        self._prepared = prepared
        self._logs = logs
        self._threads = threads
        self._cores = cores
        self._is_crowded = threads >= cores and 1 < cores <= FEW_CORES

    async def start(self, spec: DeploymentSpec, generation: int, replica_id: str) -> ReplicaHandle:
        folder = await self._folders.folder(spec)
        check_served(spec)
        await self._weigh(spec, folder, replica_id)
        plan = await self._plan(spec, folder, replica_id)
        await self._learn_from_twins(spec, plan.sharing_key)
        worker = await self._prepared.take(
            replica_id, folder, plan.openings, is_plain=plan.is_plain
        )
        try:
            return await self._fork(plan, generation, worker)
        except BaseException:
            if worker:
                self._prepared.abandon(replica_id, worker)
            raise

    async def _plan(self, spec: DeploymentSpec, folder: Path, replica_id: str) -> StartPlan:
        device, visible_devices = self.device(spec, replica_id)
        openings = await self._gpu_sandbox.openings() if device != "cpu" else ()
        is_on_device = bool(visible_devices)
        started = self._engines.on_device(spec) if is_on_device else spec
        environment = self._environment(started, device, replica_id)
        conversion = self._conversions.place(spec, folder)
        if problem := self._conversions.problem(spec, conversion):
            raise LoadError(problem, lasting=True)
        adapters = await self._folders.adapters(spec) if spec.has_adapters else None
        # All other replicas switch to it after they have loaded.
        execution = self._conversions.chosen(spec, conversion)
        is_chosen = started.engine != spec.engine
        return StartPlan(
            replica_id=replica_id,
            spec=spec,
            started=started,
            folder=folder,
            device=device,
            visible_devices=visible_devices,
            openings=openings,
            environment=environment,
            conversion=conversion,
            adapters=adapters,
            execution=execution if begins_converted(spec, folder) and not is_chosen else None,
        )

    async def _fork(
        self, plan: StartPlan, generation: int, worker: PreparedWorker | None
    ) -> ReplicaHandle:
        """Forks the replica, or starts it in a prepared worker."""
        spec, replica_id = plan.spec, plan.replica_id
        if worker:
            self._cells.rename(worker.id, replica_id)
            cell = self._cells.cell(replica_id)
        else:
            cell = self._cells.make(replica_id)
        budget_key = f"{plan.device}-{spec.dtype}-{self._threads}"
        sharing_key = plan.sharing_key
        callbacks = self._callbacks(
            spec,
            budget_key,
            sharing_key,
            uses_devices=plan.is_on_device,
            is_chosen=plan.started.engine != spec.engine,
        )
        replica = await self._processes.connect(replica_id, generation, callbacks)
        replica.explain_device(self._why_no_device(spec, plan.device))
        pool = self._pools.get(spec.id)
        if pool is None:
            replica.close()
            raise LoadError("the deployment was deleted.")
        if plan.openings:
            self._gpu_sandbox.report(pool)
        # Before the replica's walls are set up: they enclose only existing folders.
        plan.conversion.parent.mkdir(parents=True, exist_ok=True)
        if plan.execution:
            replica.conversion.begin_with(plan.execution)
        if worker:
            self._cells.hand_over(replica_id)
            self._prepared.started(replica_id, worker)
        self._processes.fork(
            Resident(replica, pool, spec, plan.folder, plan.conversion, engine=plan.started.engine),
            ReplicaSpec(
                id=replica_id,
                pipeline=spec.pipeline,
                model_dir=str(worker.models if worker else plan.folder),
                address=self._cells.address(replica_id),
                log_path=str(self._logs.path(spec.deployment)),
                flight_path=str(self._cells.flight_path(replica_id)),
                engine=plan.started.engine,
                device=plan.device,
                visible_devices=plan.visible_devices,
                device_bytes=self._device_bytes(replica_id),
                dtype=spec.dtype,
                threads=self._threads,
                batch_budgets=self._findings.budgets(spec.source, budget_key),
                sharing=self._findings.sharing(spec.source, sharing_key),
                precision=self._precision(spec, sharing_key),
                limits=self._settings.media_limits,
                turns_with=self._turns_with(plan.started),
                execution=plan.execution,
                environment=plan.environment,
                cell=cell,
                secret_path=str(self._cells.secret_path(replica_id)),
                conversions=str(plan.conversion.parent),
                cache_bytes=most_cache_bytes(self._memory.main.total),
                options=dict(spec.config),
                notices=self._engines.notices(spec) if plan.is_on_device else [],
                adapters=str(plan.adapters or ""),
                adapter_bytes=self._settings.adapter_cache_mib * MIB,
                openings=[*plan.openings],
                preparation_processes=most_preparation_processes(
                    self._settings.preparation_processes,
                    self._cores,
                    is_on_device=plan.is_on_device,
                ),
                sleeps=plan.is_on_device and self._device_sizing.may_sleep(spec),
                lost_recordings=self._findings.lost_recordings(spec.source, sharing_key),
                idle_heartbeat_s=idle_heartbeat_s(self._settings.heartbeat_timeout_s),
            ),
            worker.id if worker else None,
        )
        return replica

    async def _learn_from_twins(self, spec: DeploymentSpec, sharing_key: str) -> None:
        """Uses the measurements of the account's other models with the same files, if this one was
        not measured.

        Accounts share none, so that a replica cannot affect the answers of another account.
        """
        if self._findings.sharing(spec.source, sharing_key):
            return
        content = await self._folders.content(spec)
        # The measurements of a deleted deployment would never be removed.
        if content and self._pools.get(spec.id):
            self._findings.adopt(spec.source, f"{spec.account_id}-{content}")

    def _callbacks(
        self,
        spec: DeploymentSpec,
        budget_key: str,
        sharing_key: str,
        *,
        uses_devices: bool,
        is_chosen: bool,
    ) -> ReplicaCallbacks:
        """Returns callbacks that store the measurements of a replica for the next ones.

        Args:
            is_chosen: True if its engine was chosen for the deployment.
        """

        def calibrated(engine: str, budget: int) -> None:
            self._findings.keep_budget(spec.source, f"{engine}-{budget_key}", budget)

        def shared(sharing: Sharing) -> None:
            self._findings.keep_sharing(spec.source, sharing_key, sharing)

        def chosen(precision: ChosenPrecision) -> None:
            self._findings.keep_precision(spec.source, sharing_key, precision)

        def changed(precision: ChosenPrecision, notices: Sequence[Notice]) -> None:
            chosen(precision)
            if pool := self._pools.get(spec.id):
                pool.change_precision(precision.message, notices)

        def load_failed(problem: LoadError) -> None:
            # The next claim on a device is larger if the load ended for lack of memory.
            if uses_devices and problem.out_of_memory:
                self._device_watch.check_shortage(self._device_sizing.was_short(spec))
            elif is_chosen:
                self._engines.could_not_load(spec)

        def recording_lost(name: str) -> None:
            count = self._findings.keep_lost_recording(spec.source, sharing_key, name)
            if pool := self._pools.get(spec.id):
                rest = "CUDA graphs of this model" if count >= MOST_LOST else "this one"
                message = f"A replica ended while it recorded a CUDA graph ({name})."
                message += f" Later replicas do not record {rest}."
                pool.add_event(Reason.RECORDING_SKIPPED, message)

        return ReplicaCallbacks(calibrated, shared, chosen, changed, load_failed, recording_lost)

    def _precision(self, spec: DeploymentSpec, key: str) -> ChosenPrecision | None:
        """Returns the precision that an earlier replica chose for an `auto` dtype."""
        return self._findings.precision(spec.source, key) if spec.dtype == AUTO else None

    def _turns_with(self, spec: DeploymentSpec) -> str:
        """Returns the account with replicas that compute in turn with a new one, if each would use
        all cores. Empty for none.

        Accounts do not wait for one another: each has its share of the cores (see `Cores`).
        """
        is_alone = not self._is_crowded or spec.engine in environments.NAMES
        return "" if is_alone else spec.account_id

    def device(self, spec: DeploymentSpec, replica_id: str) -> tuple[str, str | None]:
        """Returns the device that a replica runs on and the devices that it can see."""
        if not self._memory.devices:
            if why := self._device_watch.problem:
                if needs_device(spec):
                    raise LoadError(f"the model requires a GPU, but {why}")
                return "cpu", ""
            return spec.device, None
        claimed = [device for device, _ in self._memory.devices_of(replica_id)]
        # A replica only uses devices that it has claimed. The first device that it sees is `cuda`.
        device = spec.device.partition(":")[0] if claimed else "cpu"
        return device, visible(claimed)

    def _device_bytes(self, replica_id: str) -> int | None:
        """Returns the bytes of each device that a replica has claimed, without CUDA's context. None
        if it has claimed no device.
        """
        sizes = [
            size - self._device_sizing.context_bytes(device.kind)
            for device, size in self._memory.devices_of(replica_id)
        ]
        return min(sizes, default=None)

    async def _weigh(self, spec: DeploymentSpec, folder: Path, replica_id: str) -> None:
        """Corrects the first claim of a model on GPUs by the size of its weights."""
        sizing = self._device_sizing
        if not self._memory.devices_of(replica_id) or sizing.has_weights(spec.source):
            return
        if weights := await asyncio.to_thread(read_weights, folder):
            sizing.keep_weights(spec.source, weights)
            need = sizing.wanted(spec)
            if need and need.share is None:
                self._memory.resize_devices(replica_id, need.size)

    def _why_no_device(self, spec: DeploymentSpec, device: str) -> str:
        """Returns why a replica that may use a GPU runs on the CPU, in words. Empty if it does not,
        or if this machine has no GPU.
        """
        if device != "cpu" or (graphics := graphics_of(spec)) is None:
            return ""
        if not self._memory.devices:
            return self._device_watch.problem if graphics.is_optional else ""
        # On a machine with GPUs, a claim is always this value (see `Sizing.need`).
        need = Need(spec.id, spec.memory_bytes, spec.account_id)
        return self._memory.why_no_device(need, self._device_sizing.wanted(spec))

    def _environment(
        self, spec: DeploymentSpec, device: str, replica_id: str
    ) -> OwnEnvironment | None:
        """Returns the environment of an engine that needs one. Raises `LoadError` if it no longer
        exists.
        """
        if spec.engine not in environments.NAMES:
            return None
        environment = environments.of_replica(self._settings, spec.engine)
        if environment is None:
            raise LoadError(environments.missing(spec.engine))
        if device == "cpu":
            return environment
        if claimed := self._memory.devices_of(replica_id):
            share = min(size / claimed_device.total_bytes for claimed_device, size in claimed)
            environment = msgspec.structs.replace(environment, gpu_share=share)
        compiled = self._compiled.folder(spec.id)
        compiled.mkdir(parents=True, exist_ok=True)
        return msgspec.structs.replace(environment, compiled_dir=str(compiled))
