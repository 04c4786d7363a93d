"""How a deployment's replicas end: drained of the calls they have, or killed where they hang."""

import logging

from stoker.runtime.observed import Reason, Status
from stoker.runtime.pool.handle import ReplicaHandle
from stoker.runtime.pool.launcher import Launcher, Limits
from stoker.runtime.pool.state import State

log = logging.getLogger(__name__)

_NO_DEADLINE = frozenset({Reason.EVICTED, Reason.CHANGED, Reason.ENGINE_FAILED})
"""A replica that is drained for one of these may take as long as its calls do and get on."""


class Draining:
    def __init__(self, state: State, launcher: Launcher, limits: Limits) -> None:
        self._state = state
        self._launcher = launcher
        self._limits = limits

    def drain(self, replica: ReplicaHandle, reason: Reason) -> None:
        """Let a replica finish the calls it has, then end."""
        replica.status = Status.STOPPING
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

    def drain_older(self, generation: int) -> None:
        """Replicas of older specifications: a newer one is ready."""
        for replica in self._state.of_status(Status.READY):
            if replica.generation < generation:
                self.drain(replica, Reason.CHANGED)

    def drain_idle(self, least: int, *, is_funded: bool) -> None:
        """Replicas unused for the idle timeout, down to `least` that are ready."""
        now = self._state.clock()
        timeout_s = self._state.spec.idle_timeout_s if is_funded else 0.0
        reason = Reason.IDLE_TIMEOUT if is_funded else Reason.INSUFFICIENT_CREDITS
        ready = self._state.ready()
        idle = [one for one in ready if not one.outstanding and now - one.last_used >= timeout_s]
        for replica in idle[: max(0, len(ready) - least)]:
            self.drain(replica, reason)

    def kill_starting(self) -> None:
        for replica in self._state.of_status(Status.STARTING):
            self._launcher.kill(replica.id)

    def kill_stuck(self) -> None:
        """Replicas that take too long to stop, are silent, or make no progress."""
        limits, now = self._limits, self._state.clock()
        for replica in list(self._state.replicas.values()):
            if replica.status is Status.STARTING:
                # Its load has a deadline of its own.
                continue
            if why := replica.why_unhealthy(limits.heartbeat_timeout_s, limits.stall_timeout_s):
                self.kill(replica, Reason.STALLED, why)
            elif now > replica.stop_deadline:
                why = f"it had not ended {limits.stop_grace_s:g} s after it was told to"
                self.kill(replica, None, why)

    def kill(self, replica: ReplicaHandle, reason: Reason | None, why: str) -> None:
        """End a replica at once, whatever it does.

        Args:
            reason: none, where it was told to end for a reason that is known.
            why: what was seen, for its owner.
        """
        if replica.kill_details:
            return
        log.error("stopping a replica", extra={"replica": replica.id, "why": why})
        replica.kill_reason, replica.kill_details = reason, why
        self._launcher.kill(replica.id)
