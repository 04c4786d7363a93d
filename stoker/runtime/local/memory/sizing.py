"""Memory needs of replicas, measured in running replicas and used for later ones."""

from dataclasses import replace

from stoker.base.config import MIB
from stoker.base.errors import CapacityError
from stoker.models.engines.record import AUTO
from stoker.models.tasks.registry import GENERATING
from stoker.runtime.amounts import in_words
from stoker.runtime.listening import RuntimeListener
from stoker.runtime.local.memory.claims import Need
from stoker.runtime.local.memory.device_sizing import DeviceSizing
from stoker.runtime.local.memory.kinds import KindNeeds
from stoker.runtime.local.memory.memory import MemoryAllocator
from stoker.runtime.local.memory.replica_table import Resident
from stoker.runtime.metering import Meter
from stoker.runtime.observed import Status
from stoker.runtime.pool.deployment_pool import DeploymentPool
from stoker.runtime.specification import DeploymentSpec, Readiness

HEADROOM = 1.1
"""Factor for growth. Memory is measured periodically, and a replica may need more between two
measurements.
"""
UNKNOWN_BYTES = 512 * MIB
"""Estimated bytes for an unknown model, until it was measured."""


class Sizing:
    def __init__(
        self,
        memory: MemoryAllocator,
        devices: DeviceSizing,
        meter: Meter,
        listener: RuntimeListener,
    ) -> None:
        self._memory = memory
        self._devices = devices
        self._meter = meter
        self._listener = listener
        self._measured: dict[str, int] = {}
        """Maps a deployment to the highest measured bytes of one replica."""
        self._kinds = KindNeeds()

    # --- deployments ---

    def with_memory(self, spec: DeploymentSpec, before: DeploymentSpec | None) -> DeploymentSpec:
        """Returns the specification with the best known estimate of its memory.

        Args:
            before: the deployment's previous specification, if it is not new.
        """
        if before and not spec.runs_like(before):
            self._measured.pop(spec.id, None)
        known = self._measured.get(spec.id) or spec.memory_bytes or UNKNOWN_BYTES
        if known == spec.memory_bytes:
            return spec
        return replace(spec, memory_bytes=known, weight_bytes=0)

    def need(self, spec: DeploymentSpec) -> Need:
        """Returns the machine's memory that one replica claims."""
        return Need(spec.id, self._kinds.claimed(spec), spec.account_id)

    def reserve(self, spec: DeploymentSpec, *, running: bool) -> None:
        """Reserves memory for a deployment if it is `hot` and running, and removes the reservation
        otherwise.
        """
        if running and spec.readiness is Readiness.HOT:
            self._memory.reserve(_reserved(spec), self._devices.wanted(spec), _replicas(spec))
        else:
            self._memory.unreserve(spec.id)

    def check_fits(self, spec: DeploymentSpec, *, is_alone: bool) -> None:
        """Raises `CapacityError` if a `hot` deployment's memory could not be kept for it.

        Args:
            is_alone: no other account has deployments.
        """
        if spec.readiness is Readiness.HOT:
            self._memory.check_hot(
                _reserved(spec), self._devices.wanted(spec), _replicas(spec), is_alone=is_alone
            )

    def refuse_too_large(self, pool: DeploymentPool) -> None:
        """Fails a deployment that requires a GPU if no GPU can ever hold its model. So its owner
        sees that before the first request.
        """
        spec = pool.spec
        wanted = self._devices.wanted(spec)
        # The engine of an `auto` language model is chosen at the start.
        is_open = spec.engine == AUTO and spec.pipeline in GENERATING
        if wanted is None or wanted.is_optional or is_open:
            return
        need = Need(spec.id, spec.memory_bytes, spec.account_id)
        if error := self._memory.refusal(need, wanted):
            pool.refuse(error)

    def check_beside(self, spec: DeploymentSpec, live: DeploymentSpec) -> None:
        """Raises `CapacityError` if a version cannot be loaded while the live one stays loaded."""
        spec = self.with_memory(spec, None)
        need, other = _reserved(spec).size, _reserved(live).size
        try:
            # Use the live version's id: a reservation for it is already counted in this need.
            self._memory.main.check(Need(live.id, need + other, spec.account_id))
        except CapacityError as error:
            raise CapacityError(
                f"The version needs about {in_words(need)} of memory and cannot be loaded next to "
                f"the live version, which needs {in_words(other)}. All models together may use "
                f"{in_words(self._memory.main.total)}. Use the strategy 'in_place' to unload the "
                "live version first.",
                code="insufficient_memory",
                retry_after_s=60,
            ) from error

    def forget(self, deployment_id: str) -> None:
        self._measured.pop(deployment_id, None)
        self._memory.unreserve(deployment_id)

    # --- replicas ---

    def measure(self, resident: Resident) -> None:
        """Meters the memory of a replica, and uses its need as the estimate for the next one."""
        replica, pool, spec = resident.replica, resident.pool, resident.spec
        held_bytes = (replica.vitals.memory_bytes or spec.memory_bytes) + resident.below
        self._meter.resize(replica.id, held_bytes)
        if replica.status is Status.ASLEEP:
            resident.stale_bytes = replica.vitals.own_bytes
            return
        self._measure_devices(resident)
        if not replica.vitals.own_bytes or not replica.answered:
            return
        if replica.vitals.own_bytes == resident.stale_bytes:
            return
        needed = int(replica.vitals.own_bytes * HEADROOM)
        if not self._memory.devices:
            # A replica on a GPU does not have its weights in the machine's memory.
            self._kinds.learn(spec, needed)
        if not spec.runs_like(pool.spec):
            # The deployment was changed, so its next replicas differ from this one.
            self._memory.resize(replica.id, max(needed, resident.used))
            return
        if needed > self._measured.get(pool.spec.id, 0):
            self._learn(pool, needed)
        self._memory.resize(replica.id, max(pool.spec.memory_bytes, resident.used))

    def raise_estimate(self, resident: Resident) -> None:
        """Raises the estimate after the kernel killed a replica for lack of memory.

        The estimate stays within the total of all models: an estimate alone must not prevent a
        start.
        """
        pool = resident.pool
        if resident.spec.runs_like(pool.spec):
            known = pool.spec.memory_bytes
            self._learn(pool, max(known, min(int(known * HEADROOM), self._memory.main.total)))

    def _measure_devices(self, resident: Resident) -> None:
        replica, pool = resident.replica, resident.pool
        if replica.is_on_cpu:
            self._memory.leave_devices(replica.id)
            return
        held_bytes = replica.vitals.device_bytes
        if held_bytes is None or not replica.answered:
            return
        needed, is_new = self._devices.measure(resident.spec, held_bytes, resident.device_context)
        self._memory.resize_devices(replica.id, needed)
        if is_new:
            self.reserve(pool.spec, running=pool.running)

    def _learn(self, pool: DeploymentPool, needed: int) -> None:
        """Stores the memory that one replica of a deployment needs."""
        self._measured[pool.spec.id] = needed
        pool.set_memory(needed)
        self.reserve(pool.spec, running=pool.running)
        self._listener.measured(pool.spec)


def _reserved(spec: DeploymentSpec) -> Need:
    """Returns the memory to reserve for a `hot` deployment."""
    return Need(spec.id, spec.memory_bytes * _replicas(spec), spec.account_id)


def _replicas(spec: DeploymentSpec) -> int:
    return max(1, spec.min_replicas)
