"""Starts a deployment's replicas: claims memory, forks, loads, and handles failures."""

import asyncio
import logging
from contextlib import suppress

from stoker.base.errors import CapacityError, ModelLoadingError, StokerError
from stoker.runtime.interface import LoadError
from stoker.runtime.observed import Reason, Status
from stoker.runtime.pool.draining import Draining
from stoker.runtime.pool.handle import ReplicaHandle
from stoker.runtime.pool.launcher import Launcher, Limits, SleepError
from stoker.runtime.pool.pace import Pace
from stoker.runtime.pool.sleeping import Sleeping
from stoker.runtime.pool.state import Start, State
from stoker.runtime.specification import DeploymentSpec, Readiness

log = logging.getLogger(__name__)


class Starts:
    def __init__(
        self,
        state: State,
        launcher: Launcher,
        limits: Limits,
        draining: Draining,
        *,
        sleeping: Sleeping,
        pace: Pace,
    ) -> None:
        self._state = state
        self._launcher = launcher
        self._sleeping = sleeping
        self._limits = limits
        self._draining = draining
        self._pace = pace

    def begin(self, reason: Reason, *, is_background: bool = False) -> None:
        start = Start(reason, is_background)
        start.begin(self._bring_up(start))
        self._state.starts.add(start)
        self._state.notify(reason, "A replica is starting.")

    def begin_if_room(self, reason: Reason) -> None:
        """Begins a start. An optional start needs free memory."""
        if self._is_needed(reason) or self._has_room():
            self.begin(reason)

    def begin_background(self, reason: Reason) -> None:
        """Begins a start for background calls if there is free memory."""
        if self._has_room():
            self.begin(reason, is_background=True)

    def keep_loaded(self, least: int) -> None:
        """Begins a start if fewer than `least` replicas are ready or starting."""
        if self._state.alive() < least and self._state.backoff.may_try:
            self.begin_if_room(Reason.KEPT_LOADED)

    def cancel_claims(self, of: Reason | None = None) -> None:
        """Cancels the memory claims of all starts, or of the starts with one reason."""
        for start in self._state.starts:
            if start.is_claiming and of in (None, start.reason):
                start.cancel()

    def failed(self, reason: Reason, problem: LoadError) -> None:
        """Records a failed load, or the end of a replica that would repeat itself."""
        self._draining.kill_starting()
        self._state.backoff.failed(problem)
        self._state.notify(reason, str(problem))

    def refused(self, error: CapacityError) -> None:
        """Records that a replica can never get its memory."""
        if self._state.backoff.refused(error):
            self._state.notify(Reason.INSUFFICIENT_MEMORY, error.message)

    def wait_error(self) -> StokerError:
        """Returns the error for a call after its wait: its replica still waits for memory, or
        loads.
        """
        state = self._state
        if state.starts and all(start.is_claiming for start in state.starts):
            return CapacityError(
                f"{self._launcher.shortage(state.spec)} Try again, or wait longer with "
                "'Prefer: wait=N'.",
                code="insufficient_memory",
                retry_after_s=5,
            )
        return ModelLoadingError(
            "The model is still loading. Try again, or wait longer with 'Prefer: wait=N'.",
            retry_after_s=2,
            progress=max((replica.progress for replica in state.replicas.values()), default=0.0),
        )

    async def _bring_up(self, start: Start) -> None:
        state = self._state
        requested_at = state.clock()
        replica: ReplicaHandle | None = None
        try:
            replica = await self._start(start)
        except CapacityError as error:
            self.refused(error)
        except LoadError as error:
            if error.has_fallback:
                self.begin(start.reason, is_background=start.is_background)
                return
            general = Reason.OUT_OF_MEMORY if error.out_of_memory else Reason.LOAD_FAILED
            self.failed(error.reason or general, error)
        except TimeoutError:
            problem = LoadError(f"it was not loaded in {self._limits.load_timeout_s:g} s.")
            for starting in state.of_status(Status.STARTING):
                starting.record_kill(Reason.LOAD_TIMEOUT)
            self.failed(Reason.LOAD_TIMEOUT, problem)
        except Exception:
            log.exception("replica could not be started")
            self.failed(Reason.LOAD_FAILED, LoadError("a replica could not be started."))
        if replica:
            state.listener.loaded(state.spec, state.clock() - requested_at)
            self._loaded(replica)
        elif not state.backoff.problem:
            state.notify(start.reason, "No request waits for it any more.")
        state.changes.notify_all()

    async def _start(self, start: Start) -> ReplicaHandle | None:
        """Returns a loaded replica. Wakes a sleeping one if there is one. None if its memory claim
        was cancelled.

        Raises `CapacityError`, `LoadError`, and `TimeoutError` if loading takes too long.
        """
        state = self._state
        spec, generation = state.spec, state.generation
        try:
            while sleeper := self._sleeping.next():
                # If it cannot wake, it is ended, and another replica starts.
                with suppress(SleepError):
                    return sleeper if await self._wake(sleeper, start) else None
            replica_id = await self._claim(spec, start)
            if replica_id is None:
                return None
            async with asyncio.timeout(self._limits.load_timeout_s):
                replica = await self._launcher.launch(spec, generation, replica_id)
                state.replicas[replica.id] = replica
                try:
                    await replica.wait_loaded()
                except LoadError as error:
                    raise self._with_fallback(replica, error) from error
            return replica
        finally:
            state.starts.discard(start)

    def _with_fallback(self, replica: ReplicaHandle, problem: LoadError) -> LoadError:
        """Quarantines the execution of a failed load and returns an error with a fallback to
        torch.
        """
        if replica.conversion.execution is None or problem.out_of_memory or problem.has_fallback:
            return problem
        reason = f"It could not be loaded: {problem}"
        message = self._launcher.quarantine(replica.conversion.execution, reason)
        self._state.add_event(Reason.ENGINE_SET_ASIDE, message)
        return LoadError(str(problem), has_fallback=True)

    async def _claim(self, spec: DeploymentSpec, start: Start) -> str | None:
        with start.claiming():
            try:
                is_needed = self._is_needed(start.reason) and not start.is_background
                return await self._launcher.claim(spec, is_needed=is_needed)
            except asyncio.CancelledError:
                return None

    async def _wake(self, sleeper: ReplicaHandle, start: Start) -> bool:
        """Wakes a replica once its GPU has room. Returns False if its claim was cancelled.

        Raises `SleepError` if it cannot wake.
        """
        with start.claiming():
            try:
                is_needed = self._is_needed(start.reason) and not start.is_background
                if not await self._sleeping.claim(sleeper, is_needed=is_needed):
                    return False
            except asyncio.CancelledError:
                return False
        await self._sleeping.wake(sleeper)
        return True

    def _has_room(self) -> bool:
        """Returns True if a start needs no eviction."""
        if sleeper := self._sleeping.next():
            return self._sleeping.has_room(sleeper)
        return self._launcher.has_room(self._state.spec)

    def _is_needed(self, reason: Reason) -> bool:
        is_extra = reason in (Reason.BACKLOG, Reason.KEPT_LOADED)
        return not is_extra or self._state.spec.readiness is Readiness.HOT

    def _loaded(self, replica: ReplicaHandle) -> None:
        state = self._state
        replica.mark_ready()
        state.backoff.loaded()
        self._pace.reset()
        state.listener.noticed(state.spec, replica.notices)
        state.notify(Reason.LOADED, "Ready.")
        if why := replica.device_problem:
            message = f"The model runs on the CPU, although the machine has a GPU: {why}"
            state.add_event(Reason.DEVICE_UNUSABLE, message)
        self._draining.drain_older(replica.generation)
        if not state.running:
            self._draining.drain(replica, Reason.STOPPED_BY_USER)
        elif replica.generation < state.generation and not state.starts:
            # The specification changed while the replica was loading.
            self.begin(Reason.CHANGED)
