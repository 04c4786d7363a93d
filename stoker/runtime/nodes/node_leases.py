"""Specifications that a node may run: those sent by gateways, their leases and their use."""

import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

from stoker.runtime.interface import Runtime
from stoker.runtime.nodes.leases import Use
from stoker.runtime.nodes.messages import Put
from stoker.runtime.observed import Status
from stoker.runtime.specification import DeploymentSpec, Readiness

log = logging.getLogger(__name__)

IDLE_S = 60.0
"""Seconds without a call after which a lease without replicas is released."""
FRESH_S = 1.0
"""Seconds after a call in which a specification counts as in use. Otherwise its idle time would be
reported again with each call.
"""
SETTLING_S = 5.0
"""Minimum seconds since a gateway sent the lease before it may count as lost. The gateway that
created it may be ahead of the database read.
"""


@dataclass(eq=False)
class AssignedSpec:
    """Specification that gateways have sent, and its lease."""

    spec: DeploymentSpec
    running: bool
    generation: int
    told: int
    """Generation of the lease in the gateway's last message about this specification. Without a
    lease, the specification may have changed, because only nodes with leases are notified.
    """
    heard_at: float
    used_at: float
    has_lease: bool = True

    @property
    def active_at(self) -> float:
        """Time of the last call, or of the last message that assigned the specification."""
        return max(self.used_at, self.heard_at)

    def touch(self, now: float) -> None:
        """Records a call."""
        self.used_at = now

    def receive(self, put: Put, now: float) -> bool:
        """Updates the specification from a gateway's message. Returns False if it is outdated."""
        if put.generation > self.told:
            self.told, self.heard_at, self.has_lease = put.generation, now, True
            self.generation = max(self.generation, put.generation)
        elif not put.is_change or put.generation < self.told:
            return False
        self.spec, self.running = put.spec, put.running
        return True

    def learn(self, generation: int, now: float) -> bool:
        """Updates the lease from the database. Returns True if it was gained or lost.

        Args:
            generation: generation of the node's lease there. 0 means that it has none.
        """
        had_lease = self.has_lease
        if generation >= self.generation:
            self.generation = generation
            # Otherwise a gateway is about to send the specification.
            self.has_lease = had_lease or self.told == generation
        elif now - self.heard_at > SETTLING_S:
            self.has_lease = False
        return self.has_lease != had_lease


class NodeLeases:
    def __init__(
        self,
        runtime: Runtime,
        stir: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Args:
            runtime: runs the specifications.
            stir: is notified of specifications that may change soon.
        """
        self.known: dict[str, AssignedSpec] = {}
        """Assigned specifications by id."""
        self.clock = clock
        self._runtime = runtime
        self._stir = stir
        self._unheard: dict[str, float] = {}
        """Maps leases for specifications that no gateway has sent to the time they were first
        seen.
        """

    def specs(self) -> list[DeploymentSpec]:
        """Returns the specifications that gateways have sent."""
        return [assigned.spec for assigned in self.known.values()]

    def learn(self, leases: Mapping[str, int]) -> list[int]:
        """Updates the node's leases from the database: specification → generation.

        Returns the leases to release: leases without calls for a while and without a reason to stay
        loaded.
        """
        now, returned = self.clock(), list[int]()
        for spec_id, assigned in self.known.items():
            generation = leases.get(spec_id, 0)
            if assigned.learn(generation, now):
                log.info("leases changed", extra={"spec": spec_id, "is": assigned.has_lease})
                self._apply(assigned)
            if generation == assigned.generation and self._is_idle(assigned, now):
                returned.append(generation)
        unheard = leases.keys() - self.known.keys()
        self._unheard = {spec_id: self._unheard.get(spec_id, now) for spec_id in unheard}
        returned += [
            leases[spec_id] for spec_id, since in self._unheard.items() if now - since > IDLE_S
        ]
        return returned

    def uses(self) -> dict[int, Use]:
        """Returns the use of each lease, by its generation."""
        now, uses_by_generation = self.clock(), dict[int, Use]()
        for assigned in self.known.values():
            stats = self._runtime.stats(assigned.spec.id)
            if not assigned.has_lease or stats is None:
                continue
            replicas = max(1, len(stats.replicas), assigned.spec.min_replicas)
            is_hot = assigned.spec.readiness is Readiness.HOT and assigned.running
            is_loading = any(replica.status is Status.STARTING for replica in stats.replicas)
            is_fresh = now - assigned.active_at < FRESH_S
            is_busy = is_hot or stats.calls or is_loading or is_fresh
            uses_by_generation[assigned.generation] = Use(
                memory_bytes=replicas * (stats.memory_bytes or assigned.spec.memory_bytes),
                is_kept=_is_kept(assigned),
                idle_at=None if is_busy else assigned.active_at,
            )
        return uses_by_generation

    def unleased(self) -> list[DeploymentSpec]:
        """Returns the specifications that have lost their lease."""
        return [assigned.spec for assigned in self.known.values() if not assigned.has_lease]

    async def forget(self, spec_ids: Collection[str]) -> None:
        """Removes deleted specifications, except specifications that have got a lease since."""
        for spec_id in spec_ids:
            assigned = self.known.get(spec_id)
            if assigned is not None and not assigned.has_lease:
                del self.known[spec_id]
                log.info("deleted specification dropped", extra={"spec": spec_id})
                await self._runtime.remove(spec_id)

    def used(self, spec_id: str, generation: int) -> DeploymentSpec | int:
        """Returns the specification for a call with this lease, and marks it as used.

        If the lease is not current, returns the generation of the current lease. 0 means that the
        node has none, or that no gateway has sent its specification.
        """
        assigned = self.known.get(spec_id)
        if assigned is None or generation > assigned.told:
            return 0
        if not assigned.has_lease or generation < assigned.generation:
            return assigned.generation
        assigned.touch(self.clock())
        return assigned.spec

    def touch(self, spec_id: str) -> None:
        """Records the end of a call."""
        if assigned := self.known.get(spec_id):
            assigned.touch(self.clock())

    def _is_idle(self, assigned: AssignedSpec, now: float) -> bool:
        stats = self._runtime.stats(assigned.spec.id)
        is_busy = stats is not None and (stats.replicas or stats.calls)
        return not _is_kept(assigned) and not is_busy and now - assigned.active_at > IDLE_S

    def _apply(self, assigned: AssignedSpec) -> None:
        """Applies a specification. Without a lease, its replicas end as soon as no caller uses
        them, and none is started.
        """
        spec = assigned.spec
        if not assigned.has_lease:
            spec = replace(spec, readiness=Readiness.COLD, min_replicas=0, idle_timeout_s=1.0)
        self._stir(spec.id)
        self._runtime.apply(spec, running=assigned.running)

    def put(self, put: Put) -> None:
        now, spec = self.clock(), put.spec
        assigned = self.known.get(spec.id)
        if assigned is None:
            assigned = AssignedSpec(spec, put.running, put.generation, put.generation, now, now)
            self.known[spec.id] = assigned
            self._apply(assigned)
        elif assigned.receive(put, now):
            self._apply(assigned)

    async def drop(self, spec_id: str) -> None:
        """Removes a deleted specification. Returns when none of its replicas runs."""
        self.known.pop(spec_id, None)
        await self._runtime.remove(spec_id)


def _is_kept(assigned: AssignedSpec) -> bool:
    spec = assigned.spec
    return assigned.running and (spec.readiness.stays_loaded or spec.min_replicas > 0)
