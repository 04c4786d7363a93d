"""The local runtime: replicas are processes of this machine, forked by an engine host."""

import asyncio
import dataclasses
import logging
import os
import shutil
import signal
import tempfile
from collections.abc import (
    AsyncGenerator,
    Callable,
    Collection,
    Coroutine,
    Iterable,
    Sequence,
)
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zmq

from stoker import environments
from stoker.config import MIB, Settings
from stoker.errors import NotFoundError
from stoker.ids import Prefix, new_id
from stoker.replica.llm.wire import Generation
from stoker.replica.protocol import OwnEnvironment, ReplicaSpec
from stoker.runtime.interface import (
    KEEP_ALIVE,
    Call,
    DeploymentSpec,
    DeploymentStats,
    Listeners,
    OnProgress,
    Readiness,
    Reason,
    RuntimeListener,
    Status,
)
from stoker.runtime.local.budgets import BatchBudgets
from stoker.runtime.local.conversions import Conversions
from stoker.runtime.local.host import EngineHost
from stoker.runtime.local.pool import Limits, Pool, differs
from stoker.runtime.local.preparations import ModelFolders, Preparations
from stoker.runtime.local.replica import LoadError, Replica
from stoker.runtime.local.transport import Channel
from stoker.runtime.machine import kernel_kills, machine_bytes
from stoker.runtime.memory import SHARE, Memory, Tenant
from stoker.runtime.metering import Meter

log = logging.getLogger(__name__)

TICK_S = 0.5
LOG_LIMIT_BYTES = 8 * 1024 * 1024
HEADROOM = 1.1
"""Memory is measured now and then; between two measurements a replica may need more."""
UNKNOWN_BYTES = 512 * MIB
"""What a model is taken to need of which nothing is known, until it was measured."""


@dataclass
class _Tracked:
    replica: Replica
    pool: Pool
    model_dir: Path
    conversion: Path


class LocalRuntime:
    def __init__(
        self,
        settings: Settings,
        folders: ModelFolders,
        unfunded: Callable[[], Collection[str]] = frozenset[str],
    ) -> None:
        """
        Args:
            unfunded: the accounts that cannot pay for anything to stay loaded.
        """
        data_dir = settings.data_dir.resolve()
        self._folders = folders
        self._unfunded = unfunded
        self._settings = settings
        self._threads = settings.replica_threads or len(os.sched_getaffinity(0))
        self._grace_s = settings.stop_grace_s
        self._limits = Limits(
            load_timeout_s=settings.load_timeout_s,
            heartbeat_timeout_s=settings.heartbeat_timeout_s,
            stall_timeout_s=settings.stall_timeout_s,
            stop_grace_s=settings.stop_grace_s,
        )
        self._media_limits = settings.media_limits
        self._preloads = settings.preload
        self._logs = data_dir / "logs"
        self._logs.mkdir(parents=True, exist_ok=True)
        self._budgets = BatchBudgets(data_dir / "cache")
        self._host = EngineHost(self._logs / "host.log", self._exited)
        self._memory = Memory(_budget(settings), self)
        self._kernel_kills = kernel_kills()
        self._killed: set[str] = set()
        self._preparations = Preparations(folders, self._host)
        self._measured: dict[str, int] = {}
        """Deployment → what one replica has needed of memory, at most."""
        self._conversions = Conversions(
            folder=data_dir / "cache" / "openvino",
            logs=self._logs,
            host=self._host,
            after_s=settings.convert_after_s,
            limits=settings.media_limits,
        )
        self._pools: dict[str, Pool] = {}
        self._tracked: dict[str, _Tracked] = {}
        self._background: set[asyncio.Task[None]] = set()
        self._listeners = Listeners()
        self._meter = Meter()

    # --- the interface ---

    async def start(self, listeners: Sequence[RuntimeListener]) -> None:
        self._listeners = Listeners(listeners)
        # A short path of its own: the kernel takes at most 107 bytes of a socket's path.
        self._run_dir = Path(tempfile.mkdtemp(prefix="stoker-"))
        self._context = zmq.Context()
        if self._preloads:
            self._host.start()
        self._spawn(self._supervise())
        self._spawn(self._preparations.run())

    async def stop(self) -> None:
        for pool in self._pools.values():
            pool.retire_all(Reason.SERVER_STOPPING)
        await self._wait_gone(self._grace_s)
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        await self._host.stop()
        for tracked in list(self._tracked.values()):
            self._untrack(tracked)
        self._context.destroy(linger=0)
        shutil.rmtree(self._run_dir, ignore_errors=True)

    def apply(self, spec: DeploymentSpec, *, running: bool) -> None:
        pool = self._pools.get(spec.id)
        if pool and differs(pool.spec, spec):
            self._measured.pop(spec.id, None)
        known = self._measured.get(spec.id) or spec.memory_bytes or UNKNOWN_BYTES
        spec = dataclasses.replace(spec, memory_bytes=known)
        if pool is None:
            pool = self._pools[spec.id] = Pool(
                spec=spec,
                running=running,
                launcher=self,
                limits=self._limits,
                listener=self._listeners,
            )
        if running and spec.readiness is Readiness.HOT:
            self._memory.reserve(spec.id, _reserved(spec))
        else:
            self._memory.unreserve(spec.id)
        if running:
            self._host.start()
            self._preparations.add(spec)
        pool.apply(spec, running=running)

    def check_fits(self, spec: DeploymentSpec) -> None:
        if spec.readiness is Readiness.HOT:
            self._memory.check(spec.id, _reserved(spec))

    async def remove(self, deployment_id: str) -> None:
        self._measured.pop(deployment_id, None)
        if pool := self._pools.pop(deployment_id, None):
            self._memory.unreserve(deployment_id)
            pool.retire_all(Reason.STOPPED_BY_USER)
            await self._wait_gone(self._grace_s, pool)
            source = pool.spec.source
            if all(other.spec.source != source for other in self._pools.values()):
                self._conversions.forget(source)
                self._preparations.forget(source)
        self._log_path(deployment_id).unlink(missing_ok=True)

    async def call(
        self,
        deployment_id: str,
        call: Call | Generation,
        *,
        wait_s: float,
        timeout_s: float,
        on_progress: OnProgress | None = None,
    ) -> bytes:
        pool = self._pool(deployment_id)
        return await pool.call(call, wait_s=wait_s, timeout_s=timeout_s, on_progress=on_progress)

    def stream(
        self,
        deployment_id: str,
        call: Call | Generation,
        *,
        wait_s: float,
        timeout_s: float,
        keep_alive: bytes = KEEP_ALIVE,
    ) -> AsyncGenerator[bytes]:
        pool = self._pool(deployment_id)
        return pool.stream(call, wait_s=wait_s, timeout_s=timeout_s, keep_alive=keep_alive)

    def stats(self, deployment_id: str) -> DeploymentStats | None:
        pool = self._pools.get(deployment_id)
        return pool.stats() if pool else None

    def log_path(self, deployment_id: str) -> Path | None:
        path = self._log_path(deployment_id)
        return path if path.exists() else None

    @property
    def meter(self) -> Meter:
        return self._meter

    @property
    def ready(self) -> bool:
        return self._host.ready or not self._host.started

    def check(self) -> str | None:
        return self._host.problem

    # --- what pools ask for ---

    async def claim(self, spec: DeploymentSpec, *, is_needed: bool) -> str | None:
        replica_id = new_id(Prefix.REPLICA)
        if is_needed:
            await self._memory.claim(replica_id, spec.id, spec.memory_bytes)
        elif not self._memory.take(replica_id, spec.id, spec.memory_bytes):
            return None
        return replica_id

    def has_room(self, spec: DeploymentSpec) -> bool:
        return spec.memory_bytes <= self._memory.room(spec.id)

    def shortage(self, spec: DeploymentSpec) -> str:
        return self._memory.shortage(spec.id, spec.memory_bytes)

    def is_funded(self, spec: DeploymentSpec) -> bool:
        return spec.account_id not in self._unfunded()

    def leaving(self, replica_id: str) -> None:
        self._memory.leaving(replica_id)

    async def launch(self, spec: DeploymentSpec, generation: int, replica_id: str) -> Replica:
        try:
            return await self._launch(spec, generation, replica_id)
        except BaseException:
            if replica_id not in self._tracked:
                self._memory.release(replica_id)
            raise

    async def _launch(self, spec: DeploymentSpec, generation: int, replica_id: str) -> Replica:
        folder = await self._folders.folder(spec)
        environment = self._environment(spec)
        await self._host.wait_ready()
        address = f"ipc://{self._run_dir}/{replica_id}"
        log_path = self._log_path(spec.id)
        _rotate(log_path)
        budget_key = f"{spec.device}-{spec.dtype}-{self._threads}"

        def calibrated(engine: str, budget: int) -> None:
            self._budgets.keep(spec.source, f"{engine}-{budget_key}", budget)

        replica = Replica(
            id=replica_id,
            flight_path=self._run_dir / f"{replica_id}.flight",
            generation=generation,
            channel=Channel(self._context, address),
            on_calibrated=calibrated,
        )
        conversion = self._conversions.place(spec, folder)
        self._tracked[replica_id] = _Tracked(replica, self._pools[spec.id], folder, conversion)
        self._meter.begin(
            replica_id,
            account_id=spec.account_id,
            deployment_id=spec.id,
            model=spec.model,
            memory_bytes=spec.memory_bytes,
        )
        self._host.fork(
            ReplicaSpec(
                id=replica_id,
                pipeline=spec.pipeline,
                model_dir=str(folder),
                address=address,
                log_path=str(log_path),
                flight_path=str(replica.flight_path),
                engine=spec.engine,
                device=spec.device,
                dtype=spec.dtype,
                threads=self._threads,
                batch_budgets=self._budgets.known(spec.source, budget_key),
                limits=self._media_limits,
                converted=self._conversions.done(spec, conversion),
                environment=environment,
            )
        )
        return replica

    def kill(self, replica_id: str) -> None:
        self._killed.add(replica_id)
        self._host.kill(replica_id)

    def pid(self, replica_id: str) -> int | None:
        return self._host.pid(replica_id)

    # --- what the memory's budget asks for ---

    def idle(self) -> Iterable[Tenant]:
        return [
            Tenant(one.replica.id, _is_warm(one.pool.spec), one.replica.last_used)
            for one in self._evictable()
            if one.pool.is_idle(one.replica)
        ]

    def working(self) -> Iterable[Tenant]:
        return [
            Tenant(one.replica.id, _is_warm(one.pool.spec), one.replica.ready_at)
            for one in self._evictable()
            if not one.pool.is_idle(one.replica)
        ]

    def evict(self, replica_id: str) -> None:
        tracked = self._tracked[replica_id]
        tracked.pool.evict(tracked.replica)

    def _evictable(self) -> list[_Tracked]:
        return [
            one
            for one in self._tracked.values()
            if one.replica.status is Status.READY and one.pool.spec.readiness is not Readiness.HOT
        ]

    # --- behind it ---

    def _pool(self, deployment_id: str) -> Pool:
        pool = self._pools.get(deployment_id)
        if pool is None:
            raise NotFoundError("Deployment not found", code="deployment_not_found")
        return pool

    def _environment(self, spec: DeploymentSpec) -> OwnEnvironment | None:
        """Of an engine that needs one. Raises `LoadError` where it is not there any more."""
        if spec.engine not in environments.NAMES:
            return None
        found = environments.installed(self._settings, spec.engine)
        if found is None:
            raise LoadError(environments.missing(spec.engine))
        return OwnEnvironment(
            python=str(found.python),
            cache_dir=str(environments.cache_dir(self._settings, spec.engine)),
            gpu_share=self._settings.vllm_gpu_share,
        )

    def _exited(self, replica_id: str, status: int) -> None:
        if tracked := self._tracked.get(replica_id):
            is_out_of_memory = self._ended_by_kernel(replica_id, status)
            # First, while the flight record is there: it tells which requests had been begun.
            tracked.pool.exited(tracked.replica, status, out_of_memory=is_out_of_memory)
            if is_out_of_memory:
                self._learn(tracked.pool, int(tracked.pool.spec.memory_bytes * HEADROOM))
            self._untrack(tracked)
        self._conversions.exited(replica_id, status)

    def _ended_by_kernel(self, replica_id: str, status: int) -> bool:
        """Whether it was for want of memory; where the host ended, with it ended all replicas."""
        before, self._kernel_kills = self._kernel_kills, kernel_kills()
        was_killed = status == -signal.SIGKILL and replica_id not in self._killed
        self._killed.discard(replica_id)
        return was_killed and self._host.ready and self._kernel_kills > before

    def _untrack(self, tracked: _Tracked) -> None:
        self._tracked.pop(tracked.replica.id, None)
        self._meter.end(tracked.replica.id)
        self._memory.release(tracked.replica.id)
        tracked.replica.close()

    async def _supervise(self) -> None:
        while True:
            for pool in [one for one in self._pools.values() if one.needs_upkeep]:
                try:
                    pool.tick()
                except Exception:
                    log.exception("upkeep of a deployment failed; it is tried again")
            for tracked in list(self._tracked.values()):
                if tracked.replica.status is Status.READY:
                    self._conversions.offer(
                        tracked.replica, tracked.pool.spec, tracked.model_dir, tracked.conversion
                    )
                self._weigh(tracked)
            self._memory.settle()
            await asyncio.sleep(TICK_S)

    def _weigh(self, tracked: _Tracked) -> None:
        """Count what a replica holds; what it has needed is what the next one will need."""
        replica, pool = tracked.replica, tracked.pool
        self._meter.resize(replica.id, replica.memory_bytes or pool.spec.memory_bytes)
        if not replica.own_bytes or not replica.answered:
            return
        needed = int(replica.own_bytes * HEADROOM)
        if needed > self._measured.get(pool.spec.id, 0):
            self._learn(pool, needed)
        self._memory.resize(replica.id, pool.spec.memory_bytes)

    def _learn(self, pool: Pool, needed: int) -> None:
        """What one replica of a deployment needs."""
        self._measured[pool.spec.id] = needed
        pool.spec = dataclasses.replace(pool.spec, memory_bytes=needed)
        if pool.spec.readiness is Readiness.HOT:
            self._memory.reserve(pool.spec.id, _reserved(pool.spec))
        self._listeners.weighed(pool.spec.id, needed)

    async def _wait_gone(self, seconds: float, pool: Pool | None = None) -> None:
        """Wait for stopping replicas, of one pool or of all; then kill what is left."""
        deadline = asyncio.get_running_loop().time() + seconds
        while left := [
            replica_id
            for replica_id, tracked in self._tracked.items()
            if pool is None or tracked.pool is pool
        ]:
            if asyncio.get_running_loop().time() > deadline:
                for replica_id in left:
                    self._host.kill(replica_id)
                await asyncio.sleep(0.2)
                return
            await asyncio.sleep(0.02)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def _log_path(self, deployment_id: str) -> Path:
        return self._logs / f"{deployment_id}.log"


def _budget(settings: Settings) -> int:
    return settings.memory_budget_mib * MIB or int(machine_bytes() * SHARE)


def _reserved(spec: DeploymentSpec) -> int:
    """What is kept for a `hot` deployment."""
    return spec.memory_bytes * max(1, spec.min_replicas)


def _is_warm(spec: DeploymentSpec) -> bool:
    return spec.readiness is Readiness.WARM or spec.min_replicas > 0


def _rotate(path: Path) -> None:
    """Keep one old log beside the current one."""
    try:
        if path.stat().st_size > LOG_LIMIT_BYTES:
            path.replace(path.with_suffix(".log.1"))
    except FileNotFoundError:
        return
