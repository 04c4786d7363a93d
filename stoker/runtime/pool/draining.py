"""Ends a deployment's replicas: drains their calls, or kills stuck replicas."""

import logging

from stoker.runtime.observed import Reason, Status
from stoker.runtime.pool.handle import ReplicaHandle
from stoker.runtime.pool.launcher import Launcher, Limits
from stoker.runtime.pool.state import State

log = logging.getLogger(__name__)

_NO_DEADLINE = frozenset({Reason.EVICTED, Reason.CHANGED, Reason.ENGINE_FAILED})
"""Reasons without a drain deadline. Such a replica may run as long as its calls make progress."""


class Draining:
    def __init__(self, state: State, launcher: Launcher, limits: Limits) -> None:
        self._state = state
        self._launcher = launcher
        self._limits = limits

    def drain(self, replica: ReplicaHandle, reason: Reason) -> None:
        """Drains a replica: it finishes its calls, then ends."""
        self._launcher.ending(replica.id)
        grace_s = self._limits.stop_grace_s
        if reason in _NO_DEADLINE:
            replica.shut_down_when_done(grace_s)
        else:
            replica.shut_down(grace_s)
        self._state.notify(reason, "A replica is stopping.")

    def drain_all(self, reason: Reason) -> None:
        for replica in self._state.of_status(Status.READY):
            self.drain(replica, reason)
        self.kill_starting()
        self._kill_sleeping(reason)

    def drain_older(self, generation: int) -> None:
        """Drains replicas of older specifications after a newer one is ready."""
        for replica in self._state.of_status(Status.READY):
            if replica.generation < generation:
                self.drain(replica, Reason.CHANGED)
        for replica in self._state.of_status(Status.ASLEEP):
            # Another one finishes its calls first.
            if replica.generation < generation and not replica.outstanding:
                self.end_outdated(replica)

    def end_outdated(self, replica: ReplicaHandle) -> None:
        """Kills a sleeping replica of an older specification."""
        replica.record_kill(Reason.CHANGED)
        self._launcher.kill(replica.id)

    def drain_idle(self, least: int, *, is_funded: bool) -> None:
        """Drains replicas unused for the idle timeout, until `least` ready ones are left."""
        now = self._state.clock()
        timeout_s = self._state.spec.idle_timeout_s if is_funded else 0.0
        reason = Reason.IDLE_TIMEOUT if is_funded else Reason.INSUFFICIENT_CREDITS
        if not is_funded:
            self._kill_sleeping(reason)
        ready = self._state.ready()
        idle = [
            candidate
            for candidate in ready
            if not candidate.outstanding and now - candidate.last_used >= timeout_s
        ]
        for replica in idle[: max(0, len(ready) - least)]:
            self.drain(replica, reason)

    def kill_starting(self) -> None:
        for replica in self._state.of_status(Status.STARTING):
            self._launcher.kill(replica.id)

    def _kill_sleeping(self, reason: Reason) -> None:
        for replica in self._state.of_status(Status.ASLEEP):
            replica.record_kill(reason)
            self._launcher.kill(replica.id)

    def kill_stuck(self) -> None:
        """Kills replicas that take too long to stop, are silent, or make no progress."""
        limits, now = self._limits, self._state.clock()
        for replica in list(self._state.replicas.values()):
            is_moving = replica.status is Status.ASLEEP and not replica.outstanding
            if replica.status is Status.STARTING or is_moving:
                # A load, and a move of GPU memory, has its own deadline.
                continue
            if why := replica.why_unhealthy(limits.heartbeat_timeout_s, limits.stall_timeout_s):
                self.kill(replica, Reason.STALLED, why)
            elif now > replica.stop_deadline:
                why = f"it did not stop within {limits.stop_grace_s:g} s"
                self.kill(replica, None, why)

    def kill(self, replica: ReplicaHandle, reason: Reason | None, why: str) -> None:
        """Kills a replica immediately.

        Args:
            reason: None if the replica was already stopping for a known reason.
            why: observation for its owner.
        """
        if replica.kill_cause.details:
            return
        log.error("stopping a replica", extra={"replica": replica.id, "why": why})
        replica.record_kill(reason, why)
        self._launcher.kill(replica.id)
