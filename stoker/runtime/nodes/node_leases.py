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
        for spec_id, one in self.known.items():
            generation = leases.get(spec_id, 0)
            if generation >= one.generation:
                one.generation = generation
                # Otherwise a gateway is about to send the specification.
                if one.told == generation:
                    self._set_lease(one, has_lease=True)
                if self._is_idle(one, now):
                    returned.append(generation)
            elif now - one.heard_at > SETTLING_S:
                self._set_lease(one, has_lease=False)
        unheard = leases.keys() - self.known.keys()
        self._unheard = {one: self._unheard.get(one, now) for one in unheard}
        returned += [leases[one] for one, since in self._unheard.items() if now - since > IDLE_S]
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
            is_fresh = now - max(assigned.used_at, assigned.heard_at) < FRESH_S
            is_busy = is_hot or stats.calls or is_loading or is_fresh
            uses_by_generation[assigned.generation] = Use(
                memory_bytes=replicas * (stats.memory_bytes or assigned.spec.memory_bytes),
                is_kept=_is_kept(assigned),
                idle_at=None if is_busy else max(assigned.used_at, assigned.heard_at),
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
        assigned.used_at = self.clock()
        return assigned.spec

    def touch(self, spec_id: str) -> None:
        """Records the end of a call."""
        if assigned := self.known.get(spec_id):
            assigned.used_at = self.clock()

    def _is_idle(self, one: AssignedSpec, now: float) -> bool:
        stats = self._runtime.stats(one.spec.id)
        is_busy = stats is not None and (stats.replicas or stats.calls)
        return not _is_kept(one) and not is_busy and now - max(one.used_at, one.heard_at) > IDLE_S

    def _set_lease(self, one: AssignedSpec, *, has_lease: bool) -> None:
        if one.has_lease != has_lease:
            one.has_lease = has_lease
            log.info("leases changed", extra={"spec": one.spec.id, "is": has_lease})
            self._apply(one)

    def _apply(self, one: AssignedSpec) -> None:
        """Applies a specification. Without a lease, its replicas end as soon as no caller uses
        them, and none is started.
        """
        spec = one.spec
        if not one.has_lease:
            spec = replace(spec, readiness=Readiness.COLD, min_replicas=0, idle_timeout_s=1.0)
        self._stir(spec.id)
        self._runtime.apply(spec, running=one.running)

    def put(self, put: Put) -> None:
        now, spec = self.clock(), put.spec
        assigned = self.known.get(spec.id)
        if assigned is None:
            assigned = AssignedSpec(spec, put.running, put.generation, put.generation, now, now)
            self.known[spec.id] = assigned
            self._apply(assigned)
            return
        if put.generation > assigned.told:
            assigned.told, assigned.heard_at, assigned.has_lease = put.generation, now, True
            assigned.generation = max(assigned.generation, put.generation)
        elif not put.is_change or put.generation < assigned.told:
            return
        assigned.spec, assigned.running = spec, put.running
        self._apply(assigned)

    async def drop(self, spec_id: str) -> None:
        """Removes a deleted specification. Returns when none of its replicas runs."""
        self.known.pop(spec_id, None)
        await self._runtime.remove(spec_id)


def _is_kept(one: AssignedSpec) -> bool:
    return one.running and (one.spec.readiness.stays_loaded or one.spec.min_replicas > 0)
