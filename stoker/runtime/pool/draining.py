"""How a deployment's replicas are ended: those that finish what they have, and those that hang."""

import logging

from stoker.runtime.interface import Reason, Status
from stoker.runtime.pool.handle import Replica
from stoker.runtime.pool.launcher import Launcher, Limits
from stoker.runtime.pool.state import State

log = logging.getLogger(__name__)

_PATIENT = frozenset({Reason.EVICTED, Reason.CHANGED, Reason.ENGINE_FAILED})
"""A replica that ends for one of these may finish what it has, however long that takes."""


class Draining:
    def __init__(self, state: State, launcher: Launcher, limits: Limits) -> None:
        self._state = state
        self._launcher = launcher
        self._limits = limits

    def retire(self, replica: Replica, reason: Reason) -> None:
        """Let a replica finish what it has, then end."""
        replica.status = Status.STOPPING
        self._launcher.leaving(replica.id)
        if reason in _PATIENT:
            replica.shut_down_when_done()
        else:
            replica.stop_by = self._state.clock() + self._limits.stop_grace_s
            replica.shut_down()
        self._state.observe(reason, "A replica is stopping.")

    def retire_all(self, reason: Reason) -> None:
        for replica in self._state.of_status(Status.READY):
            self.retire(replica, reason)
        self.kill_starting()

    def retire_older(self, generation: int) -> None:
        """There is a newer one that answers."""
        for replica in self._state.of_status(Status.READY):
            if replica.generation < generation:
                self.retire(replica, Reason.CHANGED)

    def retire_idle(self, least: int, *, is_funded: bool) -> None:
        """Those that nobody has used for long, down to `least` that are ready."""
        now = self._state.clock()
        timeout_s = self._state.spec.idle_timeout_s if is_funded else 0.0
        reason = Reason.IDLE_TIMEOUT if is_funded else Reason.INSUFFICIENT_CREDITS
        ready = self._state.ready()
        idle = [one for one in ready if not one.outstanding and now - one.last_used >= timeout_s]
        for replica in idle[: max(0, len(ready) - least)]:
            self.retire(replica, reason)

    def kill_starting(self) -> None:
        for replica in self._state.of_status(Status.STARTING):
            self._launcher.kill(replica.id)

    def kill_stuck(self) -> None:
        """Those that take too long to stop, are silent, or make no progress."""
        now = self._state.clock()
        for replica in list(self._state.replicas.values()):
            if replica.status is Status.STOPPING and now > replica.stop_by:
                self._launcher.kill(replica.id)
            if replica.status is Status.READY or replica.is_draining:
                self._kill_where_troubled(replica)

    def _kill_where_troubled(self, replica: Replica) -> None:
        limits = self._limits
        trouble = replica.trouble(limits.heartbeat_timeout_s, limits.stall_timeout_s)
        if trouble and not replica.condemned:
            log.error("replacing a replica", extra={"replica": replica.id, "why": trouble})
            replica.condemned = Reason.STALLED
            self._launcher.kill(replica.id)
