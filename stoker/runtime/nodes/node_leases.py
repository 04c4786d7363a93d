"""What a node may run: what gateways have told of, the leases for it, and what is made of them."""

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
"""A lease of what has no replicas is given back after so long without a call."""
FRESH_S = 1.0
"""What was called so lately is in use: it would be told of anew with each call."""
SETTLING_S = 5.0
"""The database is asked whether a lease is gone only so long after it was heard of: whoever made it
may be ahead of what was read."""


@dataclass(eq=False)
class AssignedSpec:
    """What gateways have told of, and the lease for it."""

    spec: DeploymentSpec
    running: bool
    generation: int
    told: int
    """The generation of the lease with which a gateway has last said what is to run: without one
    it may have been changed, and only those with leases are told."""
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
            runtime: is told what to run.
            stir: is told of what may change soon.
        """
        self.known: dict[str, AssignedSpec] = {}
        """By specification."""
        self.clock = clock
        self._runtime = runtime
        self._stir = stir
        self._unheard: dict[str, float] = {}
        """Leases of what no gateway has told of, and since when they are there."""

    def specs(self) -> list[DeploymentSpec]:
        """What gateways have told of."""
        return [one.spec for one in self.known.values()]

    def learn(self, leases: Mapping[str, int]) -> list[int]:
        """What the database says that this node may run: specification → generation.

        Returns the leases to be given back: of what nobody has called for a while, and nothing
        keeps loaded.
        """
        now, returned = self.clock(), list[int]()
        for spec_id, one in self.known.items():
            generation = leases.get(spec_id, 0)
            if generation >= one.generation:
                one.generation = generation
                # Else a gateway is about to say what it is for.
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
        """What is made of each lease, by its generation."""
        now, found = self.clock(), dict[int, Use]()
        for one in self.known.values():
            stats = self._runtime.stats(one.spec.id)
            if not one.has_lease or stats is None:
                continue
            replicas = max(1, len(stats.replicas), one.spec.min_replicas)
            is_hot = one.spec.readiness is Readiness.HOT and one.running
            is_loading = any(replica.status is Status.STARTING for replica in stats.replicas)
            is_fresh = now - max(one.used_at, one.heard_at) < FRESH_S
            is_busy = is_hot or stats.calls or is_loading or is_fresh
            found[one.generation] = Use(
                memory_bytes=replicas * (stats.memory_bytes or one.spec.memory_bytes),
                is_kept=_is_kept(one),
                idle_at=None if is_busy else max(one.used_at, one.heard_at),
            )
        return found

    def unleased(self) -> list[DeploymentSpec]:
        """What gateways have told of, and there is no lease for any more."""
        return [one.spec for one in self.known.values() if not one.has_lease]

    async def forget(self, spec_ids: Collection[str]) -> None:
        """Of what is no more: those of these that no lease has come for meanwhile."""
        for spec_id in spec_ids:
            one = self.known.get(spec_id)
            if one is not None and not one.has_lease:
                del self.known[spec_id]
                log.info("deleted specification dropped", extra={"spec": spec_id})
                await self._runtime.remove(spec_id)

    def used(self, spec_id: str, generation: int) -> DeploymentSpec | int:
        """A call has come, by the lease that it names.

        Returns what is to answer it; or, where it is none of now, the generation of the lease that
        there is: 0 where there is none, or nothing has been said of it.
        """
        one = self.known.get(spec_id)
        if one is None or generation > one.told:
            return 0
        if not one.has_lease or generation < one.generation:
            return one.generation
        one.used_at = self.clock()
        return one.spec

    def touch(self, spec_id: str) -> None:
        """A call has ended."""
        if one := self.known.get(spec_id):
            one.used_at = self.clock()

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
        """Without a lease, what runs ends as soon as nobody calls it, and nothing is begun."""
        spec = one.spec
        if not one.has_lease:
            spec = replace(spec, readiness=Readiness.COLD, min_replicas=0, idle_timeout_s=1.0)
        self._stir(spec.id)
        self._runtime.apply(spec, running=one.running)

    def put(self, put: Put) -> None:
        now, spec = self.clock(), put.spec
        one = self.known.get(spec.id)
        if one is None:
            one = AssignedSpec(spec, put.running, put.generation, put.generation, now, now)
            self.known[spec.id] = one
            self._apply(one)
            return
        if put.generation > one.told:
            one.told, one.heard_at, one.has_lease = put.generation, now, True
            one.generation = max(one.generation, put.generation)
        elif not put.is_change or put.generation < one.told:
            return
        one.spec, one.running = spec, put.running
        self._apply(one)

    async def drop(self, spec_id: str) -> None:
        """It was deleted. Returns once nothing of it runs."""
        self.known.pop(spec_id, None)
        await self._runtime.remove(spec_id)


def _is_kept(one: AssignedSpec) -> bool:
    return one.running and (one.spec.readiness.stays_loaded or one.spec.min_replicas > 0)
