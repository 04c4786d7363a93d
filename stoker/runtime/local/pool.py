"""One deployment's replicas: starts, routes, scales, replaces and stops them."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import Protocol

from stoker.errors import (
    CapacityError,
    ConflictError,
    InferenceTimeoutError,
    ModelLoadingError,
    StokerError,
)
from stoker.replica.llm.wire import Generation
from stoker.replica.protocol import Batches
from stoker.runtime.interface import (
    KEEP_ALIVE,
    Call,
    DeploymentSpec,
    DeploymentStats,
    OnProgress,
    Readiness,
    Reason,
    ReplicaStats,
    RuntimeListener,
    Status,
)
from stoker.runtime.local.backoff import Backoff
from stoker.runtime.local.queue import CallQueue
from stoker.runtime.local.replica import LoadError, Replica, WorkerLostError
from stoker.runtime.memory import in_words

log = logging.getLogger(__name__)

# Outstanding requests on the least busy replica from which on another one is started.
SCALE_UP_AT = 16
# A place in the queue for memory is kept for so long: who was told to ask again may do so.
CLAIM_KEPT_S = 15.0
# A replica that ends this soon, without one answer, counts as a failing load: it would loop.
EARLY_END_S = 5.0
# A lost replica's requests are given to another one once, if they had not been begun.
ATTEMPTS = 2
_PATIENT = frozenset({Reason.EVICTED, Reason.CHANGED})
"""A replica that ends for one of these may finish what it has, however long that takes."""


@dataclass(frozen=True)
class Limits:
    load_timeout_s: float
    heartbeat_timeout_s: float
    stall_timeout_s: float
    stop_grace_s: float


class Launcher(Protocol):
    """What a pool needs of the machine."""

    async def claim(self, spec: DeploymentSpec, *, is_needed: bool) -> str | None:
        """Wait until there is memory for a replica, and return the id that has it.

        One that is not needed does not wait, and nobody gives way for it: None where there is no
        room now. Raises `CapacityError` where it can never fit.
        """
        ...

    async def launch(self, spec: DeploymentSpec, generation: int, replica_id: str) -> Replica:
        """Fork a replica that has its memory, still loading.

        Raises `LoadError` where that much fails; the memory is free again then.
        """
        ...

    def has_room(self, spec: DeploymentSpec) -> bool:
        """Whether a replica would fit without anyone giving way."""
        ...

    def shortage(self, spec: DeploymentSpec) -> str:
        """What a replica waits for that has no memory yet, in numbers."""
        ...

    def leaving(self, replica_id: str) -> None:
        """A replica is about to end."""
        ...

    def is_funded(self, spec: DeploymentSpec) -> bool:
        """Whether its account can pay for what it holds."""
        ...

    def kill(self, replica_id: str) -> None: ...

    def pid(self, replica_id: str) -> int | None: ...


@dataclass(eq=False)
class Pool:
    """The observed side of a deployment. All of it runs on the event loop."""

    spec: DeploymentSpec
    running: bool
    launcher: Launcher
    limits: Limits
    listener: RuntimeListener
    clock: Callable[[], float] = time.monotonic
    replicas: dict[str, Replica] = field(default_factory=dict[str, Replica])
    _generation: int = 0
    _status: Status = Status.IDLE
    _reason: Reason = Reason.CREATED
    _message: str = "Waiting for its first request."
    _launches: "set[asyncio.Task[None]]" = field(default_factory=set["asyncio.Task[None]"])
    _news: asyncio.Event = field(default_factory=asyncio.Event)
    _waiting: int = 0
    """Calls that wait for a replica."""
    _wanted_at: float = 0.0
    """When the last of them came to an end."""
    _claiming: "dict[asyncio.Task[None], Reason]" = field(
        default_factory=dict["asyncio.Task[None]", Reason]
    )
    """Starts that wait for memory."""
    _batches: Batches = field(default_factory=Batches)
    """Of replicas that have ended."""

    def __post_init__(self) -> None:
        self._queue = CallQueue(self.listener, self.clock)
        self._backoff = Backoff(self.clock)

    # --- calls ---

    async def call(
        self,
        call: Call | Generation,
        *,
        wait_s: float,
        timeout_s: float,
        on_progress: OnProgress | None = None,
    ) -> bytes:
        with self._queue.place(self.spec) as record:
            ready_by = self.clock() + wait_s
            for attempt in range(1, ATTEMPTS + 1):
                # Work of many steps fills a replica by itself.
                busy_at = 1 if on_progress else SCALE_UP_AT
                replica = await self._ready_replica(ready_by, busy_at)
                record.given = self.clock()
                try:
                    async with asyncio.timeout(timeout_s):
                        return await replica.call(call, record.told, on_progress)
                except TimeoutError:
                    raise _timeout(timeout_s) from None
                except WorkerLostError as error:
                    if not _worth_retrying(error, attempt):
                        break
            raise _lost()

    async def stream(
        self,
        call: Call | Generation,
        *,
        wait_s: float,
        timeout_s: float,
        keep_alive: bytes = KEEP_ALIVE,
    ) -> AsyncGenerator[bytes]:
        with self._queue.place(self.spec) as record:
            ready_by = self.clock() + wait_s
            for attempt in range(1, ATTEMPTS + 1):
                replica = await self._ready_replica(ready_by)
                record.given = self.clock()
                begun = False
                try:
                    async with aclosing(
                        replica.stream(call, record.told, timeout_s, keep_alive)
                    ) as parts:
                        async for part in parts:
                            begun = True
                            yield part
                    return
                except TimeoutError:
                    raise _timeout(timeout_s) from None
                except WorkerLostError as error:
                    if begun or not _worth_retrying(error, attempt):
                        break
            raise _lost()

    async def _ready_replica(self, ready_by: float, busy_at: int = SCALE_UP_AT) -> Replica:
        """The least busy replica; starts one, and only one, where there is none.

        `busy_at`: with so many requests outstanding, it is better to have one more.
        """
        self._waiting += 1
        try:
            return await self._next_ready(ready_by, busy_at)
        finally:
            self._waiting -= 1
            self._wanted_at = self.clock()

    async def _next_ready(self, ready_by: float, busy_at: int) -> Replica:
        refusals = self._backoff.refusals
        while True:
            remaining = ready_by - self.clock()
            if not self.running:
                raise ConflictError(
                    f"The deployment '{self.spec.model}' is stopped: start it first.",
                    code="deployment_stopped",
                )
            if ready := self._ready():
                replica = min(ready, key=lambda one: one.outstanding)
                if replica.outstanding >= busy_at and self._alive() < self._most():
                    self._start_where_room(Reason.BACKLOG)
                is_alone = busy_at == 1 and replica.outstanding > 0
                if not (is_alone and self._launches and remaining > 0):
                    return replica
                await self._next_news(remaining)
                continue
            self._backoff.check_refusals(refusals)
            if not self._launches:
                self._backoff.check()
                self._start(Reason.REQUEST)
            if remaining <= 0:
                raise self._still_loading()
            await self._next_news(remaining)

    async def _next_news(self, timeout_s: float) -> None:
        # Not `asyncio.wait_for`: before Python 3.12 it loses a cancellation that comes together
        # with what it waits for.
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._news.wait()

    def _announce(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    def _still_loading(self) -> StokerError:
        if self._claiming and len(self._claiming) == len(self._launches):
            return CapacityError(
                f"{self.launcher.shortage(self.spec)} Ask again, or wait longer with "
                "'Prefer: wait=N'.",
                code="insufficient_memory",
                retry_after_s=5,
            )
        progress = max((one.progress for one in self.replicas.values()), default=0.0)
        return ModelLoadingError(
            "The model is still loading. Ask again, or wait longer with 'Prefer: wait=N'.",
            retry_after_s=2,
            progress=progress,
        )

    # --- replicas ---

    def _ready(self) -> list[Replica]:
        """Replicas that take work: of the newest specification where there are any."""
        ready = [one for one in self.replicas.values() if one.status is Status.READY]
        newest = max((one.generation for one in ready), default=0)
        return [one for one in ready if one.generation == newest]

    def _alive(self) -> int:
        current = [
            one
            for one in self.replicas.values()
            if one.generation == self._generation and one.status is Status.READY
        ]
        return len(current) + len(self._launches)

    def _least(self) -> int:
        if not self.launcher.is_funded(self.spec):
            return 0
        kept = 1 if self.spec.readiness.stays_loaded else 0
        return max(kept, self.spec.min_replicas)

    def _most(self) -> int:
        return max(1, self.spec.max_replicas, self.spec.min_replicas)

    def _start_where_room(self, reason: Reason) -> None:
        """What is only good to have is not even tried where there is no room."""
        if self._is_needed(reason) or self.launcher.has_room(self.spec):
            self._start(reason)

    def _start(self, reason: Reason) -> None:
        task = asyncio.create_task(self._bring_up(reason))
        self._launches.add(task)
        self._observe(reason, "A replica is starting.")

    async def _bring_up(self, reason: Reason) -> None:
        asked = self.clock()
        replica: Replica | None = None
        try:
            replica = await self._brought_up(reason)
        except CapacityError as error:
            self._refused(error)
        except LoadError as error:
            self._failed(Reason.OUT_OF_MEMORY if error.out_of_memory else Reason.LOAD_FAILED, error)
        except TimeoutError:
            problem = LoadError(f"not loaded in {self.limits.load_timeout_s:g} s.")
            self._failed(Reason.LOAD_TIMEOUT, problem)
        except Exception:
            log.exception("a replica could not be started")
            self._failed(Reason.LOAD_FAILED, LoadError("a replica could not be started."))
        if replica:
            self.listener.loaded(self.spec.id, self.clock() - asked)
            self._loaded(replica)
        elif not self._backoff.problem:
            self._observe(reason, "Nobody waits for it any more.")
        self._announce()

    async def _brought_up(self, reason: Reason) -> Replica | None:
        """A replica that is loaded; none where nobody wants it any more."""
        task = asyncio.current_task()
        spec, generation = self.spec, self._generation
        try:
            replica_id = await self._claimed(spec, reason, task)
            if replica_id is None:
                return None
            async with asyncio.timeout(self.limits.load_timeout_s):
                replica = await self.launcher.launch(spec, generation, replica_id)
                self.replicas[replica.id] = replica
                await replica.loaded
            return replica
        finally:
            if task:
                self._launches.discard(task)

    async def _claimed(
        self, spec: DeploymentSpec, reason: Reason, task: "asyncio.Task[None] | None"
    ) -> str | None:
        if task:
            self._claiming[task] = reason
        try:
            return await self.launcher.claim(spec, is_needed=self._is_needed(reason))
        except asyncio.CancelledError:
            return None
        finally:
            if task:
                del self._claiming[task]

    def _is_needed(self, reason: Reason) -> bool:
        is_extra = reason in (Reason.BACKLOG, Reason.KEPT_LOADED)
        return not is_extra or self.spec.readiness is Readiness.HOT

    def _loaded(self, replica: Replica) -> None:
        replica.status = Status.READY
        replica.ready_at = replica.last_used = self.clock()
        self._backoff.forget()
        self._observe(Reason.LOADED, "Ready.")
        for other in list(self.replicas.values()):
            if other.generation < replica.generation and other.status is Status.READY:
                self._retire(other, Reason.CHANGED)
        if not self.running:
            self._retire(replica, Reason.STOPPED_BY_USER)
        elif replica.generation < self._generation and not self._launches:
            # Changed while it was loading.
            self._start(Reason.CHANGED)

    def _refused(self, error: CapacityError) -> None:
        if self._backoff.refused(error):
            self._observe(Reason.INSUFFICIENT_MEMORY, error.message)

    def _failed(self, reason: Reason, problem: LoadError) -> None:
        for replica in list(self.replicas.values()):
            if replica.status is Status.STARTING:
                self.launcher.kill(replica.id)
        self._backoff.failed(problem)
        self._observe(reason, str(problem))

    def _retire(self, replica: Replica, reason: Reason) -> None:
        """Let a replica finish what it has, then end."""
        replica.status = Status.STOPPING
        self.launcher.leaving(replica.id)
        if reason in _PATIENT:
            replica.shut_down_when_done()
        else:
            replica.stop_by = self.clock() + self.limits.stop_grace_s
            replica.shut_down()
        self._observe(reason, "A replica is stopping.")

    def evict(self, replica: Replica) -> None:
        """Have a replica give way: it finishes what it has and gets nothing more."""
        self._retire(replica, Reason.EVICTED)

    def is_idle(self, replica: Replica) -> bool:
        """Whether it has nothing to do, and nobody is about to give it something."""
        is_fresh = not replica.answered and self.clock() - replica.ready_at < EARLY_END_S
        return not replica.outstanding and not self._waiting and not is_fresh

    @property
    def needs_upkeep(self) -> bool:
        """Whether `tick` has anything to do."""
        is_kept = self.running and self._least() > 0
        return bool(self.replicas or self._claiming) or is_kept

    def exited(self, replica: Replica, status: int, *, out_of_memory: bool = False) -> None:
        """A replica's process has ended; `out_of_memory`: the kernel did it."""
        self.replicas.pop(replica.id, None)
        self._batches += replica.batches
        expected = replica.status is Status.STOPPING
        was_ready = replica.status is Status.READY
        how = f"signal {-status}" if status < 0 else f"exit code {status}"
        if out_of_memory:
            how = f"the kernel ended it for want of memory, it held {in_words(replica.own_bytes)}"
        replica.lost(how, out_of_memory=out_of_memory)
        if was_ready:
            reason = replica.condemned or Reason.WORKER_LOST
            message = f"A replica ended unexpectedly ({how})."
            log.warning(message, extra={"deployment": self.spec.id, "replica": replica.id})
            if out_of_memory:
                self._failed(Reason.OUT_OF_MEMORY, LoadError(f"{how}.", out_of_memory=True))
            elif not replica.answered and self.clock() - replica.ready_at < EARLY_END_S:
                self._failed(reason, LoadError(f"it ended right after loading ({how})."))
            else:
                self._observe(reason, message)
        elif expected:
            self._observe(self._reason, "" if self.running else "Stopped.")
        self._announce()

    # --- upkeep ---

    def apply(self, spec: DeploymentSpec, *, running: bool) -> None:
        replace = differs(self.spec, spec)
        self.spec, self.running = spec, running
        self._backoff.forget()
        if not running:
            self.retire_all(Reason.STOPPED_BY_USER)
            return
        if replace:
            self._generation += 1
            if self._ready():
                self._start(Reason.CHANGED)
        self._announce()
        self.tick()
        self._observe(Reason.CREATED, "Waiting for its first request.")

    def retire_all(self, reason: Reason) -> None:
        self.running = False
        for replica in list(self.replicas.values()):
            if replica.status is Status.READY:
                self._retire(replica, reason)
            elif replica.status is Status.STARTING:
                self.launcher.kill(replica.id)
        for task in self._claiming:
            task.cancel()
        self._observe(reason, "Stopped.")
        self._announce()

    def tick(self) -> None:
        """Replace what is in trouble, start what is missing, stop what is idle."""
        now = self.clock()
        for replica in list(self.replicas.values()):
            if replica.status is Status.STOPPING and now > replica.stop_by:
                self.launcher.kill(replica.id)
            if replica.status is Status.READY or replica.is_draining:
                trouble = replica.trouble(
                    self.limits.heartbeat_timeout_s, self.limits.stall_timeout_s
                )
                if trouble and not replica.condemned:
                    log.error("replacing a replica", extra={"replica": replica.id, "why": trouble})
                    replica.condemned = Reason.STALLED
                    self.launcher.kill(replica.id)
        if not self.running:
            return
        self._give_up_claims(now)
        if self._alive() < self._least() and self._backoff.may_try:
            self._start_where_room(Reason.KEPT_LOADED)
        self._stop_idle(now)

    def _give_up_claims(self, now: float) -> None:
        """Where nobody waits any more, nobody else is to make room."""
        if self._waiting or now - self._wanted_at < CLAIM_KEPT_S:
            return
        for task, reason in self._claiming.items():
            if reason is Reason.REQUEST:
                task.cancel()

    def _stop_idle(self, now: float) -> None:
        is_funded = self.launcher.is_funded(self.spec)
        timeout_s = self.spec.idle_timeout_s if is_funded else 0.0
        reason = Reason.IDLE_TIMEOUT if is_funded else Reason.INSUFFICIENT_CREDITS
        idle = [
            one for one in self._ready() if not one.outstanding and now - one.last_used >= timeout_s
        ]
        spare = len(self._ready()) - self._least()
        for replica in idle[: max(0, spare)]:
            self._retire(replica, reason)

    def _observe(self, reason: Reason, message: str) -> None:
        status = self._current_status()
        if status is not self._status or status is Status.FAILED:
            self._status, self._reason, self._message = status, reason, message
            log.info(
                "deployment changed",
                extra={"deployment": self.spec.id, "status": status, "reason": reason},
            )
            self.listener.changed(self.spec.id, status, reason, message)

    def _current_status(self) -> Status:
        states = {one.status for one in self.replicas.values()}
        if not self.running:
            return Status.STOPPING if states else Status.STOPPED
        if Status.READY in states:
            return Status.READY
        if self._launches:
            return Status.STARTING
        if self._backoff.problem:
            return Status.FAILED
        return Status.STOPPING if Status.STOPPING in states else Status.IDLE

    def stats(self) -> DeploymentStats:
        return DeploymentStats(
            status=self._current_status(),
            reason=self._reason,
            message=self._message,
            max_replicas=self._most(),
            memory_bytes=self.spec.memory_bytes,
            calls=len(self._queue),
            batches=sum((one.batches for one in self.replicas.values()), self._batches),
            replicas=[
                ReplicaStats(
                    id=one.id,
                    status=one.status,
                    pid=self.launcher.pid(one.id),
                    outstanding=one.outstanding,
                    memory_bytes=one.memory_bytes,
                    progress=one.progress,
                    engine=one.engine,
                    cache_usage=one.cache_usage,
                )
                for one in self.replicas.values()
            ],
        )


def _worth_retrying(error: WorkerLostError, attempt: int) -> bool:
    # What was being worked on may be what ended it: it must not take another one down.
    return not error.begun and attempt < ATTEMPTS


def _lost() -> CapacityError:
    return CapacityError(
        "The worker was lost while it worked on this request. Others are unaffected.",
        code="worker_lost",
        retry_after_s=1,
    )


def _timeout(timeout_s: float) -> InferenceTimeoutError:
    return InferenceTimeoutError(
        f"The model did not answer within {timeout_s:g} s; the work was cancelled."
    )


def differs(old: DeploymentSpec, new: DeploymentSpec) -> bool:
    """Whether replicas of the old specification cannot serve the new one."""
    return (old.source, old.pipeline, old.engine, old.device, old.dtype, old.config) != (
        new.source,
        new.pipeline,
        new.engine,
        new.device,
        new.dtype,
        new.config,
    )
