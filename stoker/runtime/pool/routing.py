"""Routes a call: its place in the queue, a ready replica, and the answer."""

from collections.abc import AsyncGenerator
from contextlib import AbstractContextManager, nullcontext

from stoker.base.errors import (
    CapacityError,
    ConflictError,
    InferenceTimeoutError,
    RateLimitError,
    StokerError,
)
from stoker.base.fairness import CURRENT_CALLER
from stoker.runtime.interface import KEEP_ALIVE, Call, OnProgress
from stoker.runtime.observed import Reason
from stoker.runtime.pool.flex_time import FlexTime
from stoker.runtime.pool.handle import ReplicaHandle
from stoker.runtime.pool.pending_calls import WorkerLostError, WorkerTakenError
from stoker.runtime.pool.queue import BACKGROUND_RETRY_S, CallQueue
from stoker.runtime.pool.starts import Starts
from stoker.runtime.pool.state import State
from stoker.wire.generation_request import Generation

# Minimum outstanding requests on the least busy replica to start another one.
SCALE_UP_AT = 16
# Seconds that a memory claim is kept after the last wait: a caller that got 503 may retry.
CLAIM_KEPT_S = 15.0
# Requests of a lost replica are sent to another one once, if they were not started.
ATTEMPTS = 2
# Seconds between two looks for free memory for a background call.
BACKGROUND_LOOK_S = 1.0


class Router:
    def __init__(self, state: State, starts: Starts, queue: CallQueue, flex_time: FlexTime) -> None:
        self._state = state
        self._starts = starts
        self._queue = queue
        self._flex_time = flex_time
        self.waiting = 0
        """Calls that wait for a replica, without background calls."""
        self._wanted_at = 0.0
        """Time at which the last wait ended."""

    @property
    def is_wanted(self) -> bool:
        """True if a call waits for a replica, or may be retried soon."""
        return self.waiting > 0 or self._state.clock() - self._wanted_at < CLAIM_KEPT_S

    async def call(
        self,
        call: Call | Generation,
        *,
        wait_s: float,
        timeout_s: float,
        on_progress: OnProgress | None = None,
    ) -> bytes:
        state = self._state
        # A job has its own queue and no time limit here.
        within_s = timeout_s if on_progress is None else None
        with self._queue.place(
            state.spec, within_s, adapter=call.adapter, is_steady=state.is_steady
        ) as record:
            ready_by = state.clock() + wait_s
            why = ""
            attempt = 1
            while attempt <= ATTEMPTS:
                # Work of many steps occupies a replica on its own.
                busy_at = 1 if on_progress else SCALE_UP_AT
                replica = await self._ready_replica(ready_by, busy_at)
                record.mark_given(state.clock())
                try:
                    with self._working(replica):
                        return await replica.call(call, record.stats, on_progress, timeout_s)
                except TimeoutError:
                    raise _timeout(timeout_s) from None
                except WorkerTakenError:
                    continue
                except WorkerLostError as error:
                    why = error.why
                    if not _worth_retrying(error, attempt):
                        break
                    attempt += 1
            raise _lost(why)

    async def stream(
        self,
        call: Call | Generation,
        *,
        wait_s: float,
        timeout_s: float,
        keep_alive: bytes = KEEP_ALIVE,
    ) -> AsyncGenerator[bytes]:
        state = self._state
        with self._queue.place(state.spec, adapter=call.adapter) as record:
            ready_by = state.clock() + wait_s
            why = ""
            attempt = 1
            while attempt <= ATTEMPTS:
                replica = await self._ready_replica(ready_by)
                record.mark_given(state.clock())
                begun = False
                try:
                    with (
                        self._working(replica),
                        replica.sending(call, record.stats) as answer,
                    ):
                        while part := await answer.next_streamed(timeout_s, keep_alive):
                            begun = True
                            yield part
                    return
                except TimeoutError:
                    raise _timeout(timeout_s) from None
                except WorkerTakenError:
                    if begun:
                        raise _unavailable(state) from None
                except WorkerLostError as error:
                    why = error.why
                    if begun or not _worth_retrying(error, attempt):
                        break
                    attempt += 1
            raise _lost(why)

    def _working(self, replica: ReplicaHandle) -> AbstractContextManager[None]:
        """Returns a context that bills the work of a background call."""
        if CURRENT_CALLER.get().tier.is_background:
            return self._flex_time.working(replica.id)
        return nullcontext()

    async def _ready_replica(self, ready_by: float, busy_at: int = SCALE_UP_AT) -> ReplicaHandle:
        """Returns the least busy replica. Starts exactly one if none exists.

        `busy_at`: number of outstanding requests from which on another replica is started.
        """
        if CURRENT_CALLER.get().tier.is_background:
            return await self._next_for_background(ready_by, busy_at)
        self.waiting += 1
        try:
            return await self._next_ready(ready_by, busy_at)
        finally:
            self.waiting -= 1
            self._wanted_at = self._state.clock()

    async def _next_ready(self, ready_by: float, busy_at: int) -> ReplicaHandle:
        state, has_waited = self._state, False
        refusals = state.backoff.refusals
        while True:
            remaining = ready_by - state.clock()
            if not state.running:
                raise _stopped(state)
            if ready := state.ready():
                replica = ready[0]
                if len(ready) > 1:
                    replica = min(ready, key=lambda each: (each.live_outstanding, each.outstanding))
                if replica.live_outstanding >= busy_at and self._may_grow():
                    self._starts.begin_if_room(Reason.BACKLOG)
                is_alone = busy_at == 1 and replica.outstanding > 0
                if not (is_alone and state.starts and remaining > 0):
                    if has_waited:
                        state.listener.given()
                    return replica
            else:
                state.backoff.check_refusals(refusals)
                if not state.starts:
                    state.backoff.check()
                    self._starts.begin(Reason.REQUEST)
                if remaining <= 0:
                    raise self._starts.wait_error()
            if not has_waited:
                has_waited = True
                state.listener.waits()
            await state.changes.wait(remaining)

    async def _next_for_background(self, ready_by: float, busy_at: int) -> ReplicaHandle:
        """Returns the least busy replica for a background call. Starts one only in free memory."""
        state, has_waited = self._state, False
        while True:
            remaining = ready_by - state.clock()
            if not state.running:
                raise _stopped(state)
            ready = state.ready()
            replica = min(ready, key=lambda candidate: candidate.outstanding, default=None)
            if replica:
                if replica.outstanding >= busy_at and self._may_grow():
                    self._starts.begin_background(Reason.BACKLOG)
                if has_waited:
                    state.listener.given()
                return replica
            if not state.starts:
                state.backoff.check()
                self._starts.begin_background(Reason.REQUEST)
            if remaining <= 0:
                raise self._starts.wait_error() if state.starts else _unavailable(state)
            if not has_waited:
                has_waited = True
                state.listener.waits()
            await state.changes.wait(min(remaining, BACKGROUND_LOOK_S))

    def _may_grow(self) -> bool:
        """Returns True if another replica may be started."""
        state = self._state
        return state.alive() < state.max_alive and state.backoff.may_try


def _stopped(state: State) -> StokerError:
    return ConflictError(
        f"The deployment '{state.spec.model}' is stopped: start it first.",
        code="deployment_stopped",
    )


def _unavailable(state: State) -> StokerError:
    return RateLimitError(
        f"No memory is free for '{state.spec.model}' now, and a request with the service tier "
        "'flex' takes none from other models. Try again later, wait longer with 'Prefer: wait=N', "
        "or use the service tier 'default'.",
        code="resource_unavailable",
        retry_after_s=BACKGROUND_RETRY_S,
    )


def _worth_retrying(error: WorkerLostError, attempt: int) -> bool:
    # Calls in progress may have ended the replica, and must not end another one.
    return not error.begun and attempt < ATTEMPTS


def _lost(why: str) -> CapacityError:
    ended = f"ended while it worked on this request: {why}" if why else ""
    return CapacityError(
        f"The worker was {ended or 'lost while it worked on this request'}. Others are unaffected.",
        code="worker_lost",
        retry_after_s=1,
    )


def _timeout(timeout_s: float) -> InferenceTimeoutError:
    return InferenceTimeoutError(
        f"The model did not answer within {timeout_s:g} s; the work was cancelled."
    )
