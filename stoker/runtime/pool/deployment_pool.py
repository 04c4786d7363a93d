"""Pool of one deployment's replicas, with their calls and upkeep."""

import logging
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from typing import Any

from stoker.base.errors import CapacityError
from stoker.runtime.amounts import in_words
from stoker.runtime.interface import KEEP_ALIVE, Call, LoadError, OnProgress
from stoker.runtime.listening import RuntimeListener
from stoker.runtime.observed import DeploymentStats, Reason, ReplicaStats, Status
from stoker.runtime.pool.draining import Draining
from stoker.runtime.pool.exit_status import how_it_ended, is_crash
from stoker.runtime.pool.flex_time import FlexTime
from stoker.runtime.pool.handle import ReplicaHandle
from stoker.runtime.pool.launcher import Launcher, Limits
from stoker.runtime.pool.queue import CallQueue
from stoker.runtime.pool.routing import Router
from stoker.runtime.pool.sleeping import Sleeping
from stoker.runtime.pool.starts import Starts
from stoker.runtime.pool.state import State
from stoker.runtime.specification import DeploymentSpec
from stoker.wire.generation_request import Generation
from stoker.wire.notices import Notice
from stoker.wire.passes import Batches

log = logging.getLogger(__name__)

# A replica that ends this soon without one answer counts as a failed load. Otherwise it would
# restart in a loop.
EARLY_END_S = 5.0


class DeploymentPool:
    """Observed side of a deployment. All methods run on the event loop."""

    def __init__(
        self,
        *,
        spec: DeploymentSpec,
        running: bool,
        launcher: Launcher,
        limits: Limits,
        listener: RuntimeListener,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._launcher = launcher
        self._clock = clock
        self._state = State(spec, running, listener, clock)
        self._queue = CallQueue(listener, clock, on_live=self._live_call_arrived)
        self._flex_time = FlexTime(self._state, launcher, self._queue)
        self._draining = Draining(self._state, launcher, limits)
        self._sleeping = Sleeping(self._state, launcher, self._draining)
        self._starts = Starts(
            self._state,
            launcher,
            limits,
            self._draining,
            sleeping=self._sleeping,
            pace=self._queue.pace,
        )
        self._router = Router(self._state, self._starts, self._queue, self._flex_time)
        self._ended = Batches()
        """Forward passes of replicas that have ended."""

    @property
    def running(self) -> bool:
        """True if the owner wants the deployment to run."""
        return self._state.running

    @property
    def spec(self) -> DeploymentSpec:
        return self._state.spec

    def call(
        self,
        call: Call | Generation,
        *,
        wait_s: float,
        timeout_s: float,
        on_progress: OnProgress | None = None,
    ) -> Coroutine[Any, Any, bytes]:
        return self._router.call(call, wait_s=wait_s, timeout_s=timeout_s, on_progress=on_progress)

    def stream(
        self,
        call: Call | Generation,
        *,
        wait_s: float,
        timeout_s: float,
        keep_alive: bytes = KEEP_ALIVE,
    ) -> AsyncGenerator[bytes]:
        return self._router.stream(call, wait_s=wait_s, timeout_s=timeout_s, keep_alive=keep_alive)

    # --- wanted state ---

    def apply(self, spec: DeploymentSpec, *, running: bool) -> None:
        state = self._state
        is_other = not spec.runs_like(state.spec)
        state.update(spec, running=running)
        self._flex_time.update()
        state.backoff.reset()
        if not running:
            self.stop(Reason.STOPPED_BY_USER)
            return
        if is_other:
            state.begin_generation()
            if state.ready():
                self._starts.begin(Reason.CHANGED)
        state.changes.notify_all()
        self.tick()
        state.notify(Reason.CHANGED, "Waiting for its first request.")

    def set_memory(self, memory_bytes: int) -> None:
        """Sets the measured memory need of one replica."""
        self._state.set_memory(memory_bytes)

    def stop(self, reason: Reason) -> None:
        """Drains the replicas and rejects calls from now on."""
        self._state.stop()
        self._draining.drain_all(reason)
        self._starts.cancel_claims()
        self._state.notify(reason, "Stopped.")
        self._state.changes.notify_all()

    def add_event(self, reason: Reason, message: str) -> None:
        """Notifies the listeners of an event that does not change the status."""
        self._state.add_event(reason, message)

    def change_precision(self, message: str, notices: Sequence[Notice]) -> None:
        """Records that a replica computes in another precision from now on."""
        self._state.listener.noticed(self._state.spec, notices)
        self._state.add_event(Reason.PRECISION_CHANGED, message)

    def fail_engine(self, problem: str) -> None:
        """Fails the deployment permanently: the requested engine cannot run it, and no other engine
        may.
        """
        for replica in self._state.of_status(Status.READY):
            self._draining.drain(replica, Reason.ENGINE_FAILED)
        self._starts.failed(Reason.ENGINE_FAILED, LoadError(problem, lasting=True))

    def lacks_files(self, problem: LoadError) -> bool:
        """Reports missing files that a start would need. Returns False if replicas or starts exist,
        because they report their own errors.
        """
        state = self._state
        if state.replicas or state.starts or not state.running:
            return False
        self._starts.failed(problem.reason or Reason.LOAD_FAILED, problem)
        return True

    def refuse(self, problem: CapacityError) -> None:
        """Reports that a replica can never get its memory, unless replicas or starts exist: they
        report their own errors.
        """
        state = self._state
        if state.running and not state.replicas and not state.starts:
            self._starts.refused(problem)

    def evict(self, replica: ReplicaHandle) -> None:
        """Ends a replica to free its memory for another deployment. A ready one is drained."""
        if replica.status is Status.ASLEEP:
            self._draining.kill(replica, Reason.EVICTED, "other models needed its memory")
        else:
            self._draining.drain(replica, Reason.EVICTED)
            replica.drop_background()

    def put_to_sleep(self, replica: ReplicaHandle) -> None:
        """Moves a replica's GPU memory to main memory, to free it for another deployment."""
        self._sleeping.begin(replica)
        replica.drop_background()

    def end(self, replica: ReplicaHandle, reason: Reason, why: str) -> None:
        """Kills a replica. `why`, as in `it was silent for 16 s`, is for its owner."""
        self._draining.kill(replica, reason, why)

    # --- upkeep ---

    @property
    def needs_upkeep(self) -> bool:
        """True if `tick` has or may get work, before the deployment is changed or claims memory."""
        state = self._state
        return bool(state.replicas or state.starts) or (state.running and state.min_loaded > 0)

    def tick(self) -> None:
        """Kills stuck replicas, starts missing ones and drains idle ones."""
        state = self._state
        self._flex_time.update()
        self._draining.kill_stuck()
        if not state.running:
            return
        if not self._router.is_wanted:
            self._starts.cancel_claims(Reason.REQUEST)
        is_funded = self._launcher.is_funded(state.spec)
        least = state.min_loaded if is_funded else 0
        self._starts.keep_loaded(least)
        self._draining.drain_idle(least, is_funded=is_funded)

    def _live_call_arrived(self) -> None:
        self._flex_time.update()

    def exited(self, replica: ReplicaHandle, status: int, *, out_of_memory: bool = False) -> None:
        """Handles the end of a replica's process.

        Args:
            status: its exit code, or minus the number of the signal that ended it.
            out_of_memory: the kernel killed it for lack of memory.
        """
        state = self._state
        state.replicas.pop(replica.id, None)
        self._queue.pace.reset()
        self._ended += replica.vitals.batches
        if replica.has_proved_itself:
            state.backoff.proved()
        how = how_it_ended(status)
        if out_of_memory:
            held_size = in_words(replica.vitals.own_bytes)
            how = f"the kernel killed it for lack of memory; it held {held_size}"
        # An end by anyone else is not the replica's fault.
        is_faulty = is_crash(status) or replica.kill_cause.reason is not None
        is_quarantined = is_faulty and self._quarantine(replica, how)
        took_too_much = replica.kill_cause.reason is Reason.MEMORY_EXCEEDED
        out_of_memory = out_of_memory or took_too_much
        replica.mark_ended(how, out_of_memory=out_of_memory, has_fallback=is_quarantined)
        self._sleeping.ended(replica)
        # The next replica does not record the pass, so it does not end in the same way.
        is_avoided = not out_of_memory and _ended_by_itself(replica)
        is_avoided = is_avoided and replica.report_lost_recording()
        if replica.status is Status.READY:
            reason = replica.kill_cause.reason or Reason.WORKER_LOST
            message = _why_ended(replica, how)
            log.warning(message, extra={"deployment": self.spec.id, "replica": replica.id})
            if took_too_much and not is_quarantined:
                self._starts.failed(reason, LoadError(message, out_of_memory=True))
            elif out_of_memory and not is_quarantined:
                problem = LoadError(f"{how}.", out_of_memory=True)
                self._starts.failed(Reason.OUT_OF_MEMORY, problem)
            elif not (is_quarantined or is_avoided) and (
                problem := self._load_problem(replica, how, is_faulty)
            ):
                self._starts.failed(reason, problem)
            elif state.status is Status.READY:
                state.add_event(reason, message)
            else:
                state.notify(reason, message)
        elif replica.status is Status.ASLEEP and replica.kill_cause.reason is None:
            state.add_event(Reason.WORKER_LOST, _why_ended(replica, how))
        elif replica.status in (Status.STOPPING, Status.ASLEEP):
            if replica.kill_cause.details:
                state.add_event(replica.kill_cause.reason or state.reason, _why_ended(replica, how))
            state.replica_stopped()
        state.changes.notify_all()

    def _quarantine(self, replica: ReplicaHandle, how: str) -> bool:
        """Quarantines the execution that a replica had just started to use, if that caused its end.

        Returns True if it did.
        """
        if (
            replica.conversion.execution is None
            or replica.conversion.has_proved_itself
            or replica.was_preparing
        ):
            return False
        event = f"ended by {how}"
        if replica.kill_cause.reason is Reason.MEMORY_EXCEEDED:
            event = "used too much memory and was ended"
        elif replica.kill_cause.reason:
            event = "hung and was ended"
        reason = f"A replica {event} soon after it began to use OpenVINO."
        message = self._launcher.quarantine(replica.conversion.execution, reason)
        self._state.add_event(Reason.ENGINE_SET_ASIDE, message)
        return True

    def _load_problem(self, replica: ReplicaHandle, how: str, is_faulty: bool) -> LoadError | None:
        """Returns the error for the load if the next replica would end in the same way."""
        if self._is_fresh(replica):
            return LoadError(f"it ended right after loading ({how}).")
        if not is_faulty or replica.has_proved_itself or not self._state.backoff.ended_soon():
            return None
        return LoadError(
            f"replica after replica ended soon after its start, the last one with {how}."
        )

    def _is_fresh(self, replica: ReplicaHandle) -> bool:
        return not replica.answered and self._clock() - replica.ready_at < EARLY_END_S

    # --- observations ---

    @property
    def calls(self) -> int:
        """Number of queued or running calls."""
        return len(self._queue)

    @property
    def call_rate(self) -> float:
        """Calls per second, estimated from recent calls."""
        return self._queue.demand.rate

    def is_idle(self, replica: ReplicaHandle) -> bool:
        """Returns True if the replica has no work but background work, and no other call is about
        to be sent to it.
        """
        is_used = replica.live_outstanding or self._router.waiting
        return not is_used and not self._is_fresh(replica)

    def is_asleep(self, replica: ReplicaHandle) -> bool:
        """Returns True if the replica sleeps, and no call is about to wake it."""
        return replica.status is Status.ASLEEP and not self._sleeping.is_waking(replica)

    def stats(self) -> DeploymentStats:
        state = self._state
        replicas = state.replicas.values()
        return DeploymentStats(
            status=state.status,
            reason=state.reason,
            message=state.message,
            max_replicas=state.max_alive,
            memory_bytes=state.spec.memory_bytes,
            calls=self.calls,
            batches=sum((replica.vitals.batches for replica in replicas), self._ended),
            replicas=[self._replica_stats(replica) for replica in replicas],
        )

    def _replica_stats(self, replica: ReplicaHandle) -> ReplicaStats:
        claims = () if replica.is_on_cpu else self._launcher.devices(replica.id)
        vitals = replica.vitals
        device = "" if replica.status is Status.ASLEEP else replica.device
        if claims:
            # The replica numbers only the devices that it sees.
            device = ",".join(f"cuda:{claim.index}" for claim in claims)
        return ReplicaStats(
            id=replica.id,
            status=replica.status,
            pid=self._launcher.pid(replica.id),
            outstanding=replica.outstanding,
            memory_bytes=vitals.memory_bytes,
            progress=replica.progress,
            engine=vitals.engine,
            cache_usage=vitals.cache_usage,
            device=device,
            device_name=", ".join(dict.fromkeys(claim.name for claim in claims)),
            device_bytes=max(
                (claim.used_bytes for claim in claims if claim.used_bytes is not None), default=None
            ),
            device_held_bytes=sum(claim.held_bytes for claim in claims),
            device_problem=replica.device_problem,
            is_settled=vitals.is_settled,
            recorded_passes=vitals.recorded.count,
            recording_problem=vitals.recorded.problem,
        )


def _ended_by_itself(replica: ReplicaHandle) -> bool:
    """Returns True if a ready replica ended or hung."""
    return replica.status is Status.READY and replica.kill_cause.reason in (None, Reason.STALLED)


def _why_ended(replica: ReplicaHandle, how: str) -> str:
    if replica.kill_cause.details:
        return f"A replica was ended: {replica.kill_cause.details}."
    return f"A replica ended unexpectedly ({how})."
