"""What replicas need of memory: measured in those that run, for the next ones."""

from dataclasses import replace

from stoker.base.config import MIB
from stoker.base.errors import CapacityError
from stoker.runtime.amounts import in_words
from stoker.runtime.listening import RuntimeListener
from stoker.runtime.local.memory.budget import Need
from stoker.runtime.local.memory.device_sizing import HEADROOM, DeviceSizing
from stoker.runtime.local.memory.memory import Memory
from stoker.runtime.local.memory.replica_table import Resident
from stoker.runtime.metering import Meter
from stoker.runtime.pool.deployment_pool import DeploymentPool
from stoker.runtime.specification import DeploymentSpec, Readiness

UNKNOWN_BYTES = 512 * MIB
"""The estimate for a model of which nothing is known, until it was measured."""


class Sizing:
    def __init__(
        self, memory: Memory, devices: DeviceSizing, meter: Meter, listener: RuntimeListener
    ) -> None:
        self._memory = memory
        self._devices = devices
        self._meter = meter
        self._listener = listener
        self._measured: dict[str, int] = {}
        """Deployment → what one replica has needed of memory, at most."""

    # --- deployments ---

    def with_memory(self, spec: DeploymentSpec, before: DeploymentSpec | None) -> DeploymentSpec:
        """A specification with the best known estimate of its memory.

        Args:
            before: the deployment's specification until now, if it is not new.
        """
        if before and not spec.runs_like(before):
            self._measured.pop(spec.id, None)
        known = self._measured.get(spec.id) or spec.memory_bytes or UNKNOWN_BYTES
        return spec if known == spec.memory_bytes else replace(spec, memory_bytes=known)

    def reserve(self, spec: DeploymentSpec, *, running: bool) -> None:
        """Keep memory for a deployment that is `hot`, and for no other."""
        if running and spec.readiness is Readiness.HOT:
            self._memory.reserve(_reserved(spec), self._devices.wanted(spec), _replicas(spec))
        else:
            self._memory.unreserve(spec.id)

    def check_fits(self, spec: DeploymentSpec, *, is_alone: bool) -> None:
        """Raises `CapacityError` where a `hot` deployment's memory could not be kept for it.

        Args:
            is_alone: no other account has deployments.
        """
        if spec.readiness is Readiness.HOT:
            self._memory.check_hot(
                _reserved(spec), self._devices.wanted(spec), _replicas(spec), is_alone=is_alone
            )

    def check_beside(self, spec: DeploymentSpec, live: DeploymentSpec) -> None:
        """Raises `CapacityError` where a version cannot be loaded while the live one stays so."""
        spec = self.with_memory(spec, None)
        own, other = _reserved(spec).size, _reserved(live).size
        try:
            # As the live one, for which memory may be reserved: it is counted here.
            self._memory.main.check(Need(live.id, own + other, spec.account_id))
        except CapacityError as error:
            raise CapacityError(
                f"The version needs about {in_words(own)} of memory and cannot be loaded beside "
                f"the live one, which needs {in_words(other)}: all models together may take "
                f"{in_words(self._memory.main.total)}. With the strategy 'in_place', the live one "
                "makes room for it first.",
                code="insufficient_memory",
                retry_after_s=60,
            ) from error

    def forget(self, deployment_id: str) -> None:
        self._measured.pop(deployment_id, None)
        self._memory.unreserve(deployment_id)

    # --- replicas ---

    def measure(self, resident: Resident) -> None:
        """Meter what a replica holds; what it has needed is the estimate for the next one."""
        replica, pool, spec = resident.replica, resident.pool, resident.spec
        held = (replica.vitals.memory_bytes or spec.memory_bytes) + resident.below
        self._meter.resize(replica.id, held)
        self._measure_devices(resident)
        if not replica.vitals.own_bytes or not replica.answered:
            return
        needed = int(replica.vitals.own_bytes * HEADROOM)
        if not spec.runs_like(pool.spec):
            # The deployment was changed: its next replicas are not like this one.
            self._memory.resize(replica.id, max(needed, resident.used))
            return
        if needed > self._measured.get(pool.spec.id, 0):
            self._learn(pool, needed)
        self._memory.resize(replica.id, max(pool.spec.memory_bytes, resident.used))

    def raise_estimate(self, resident: Resident) -> None:
        """The kernel has killed a replica for want of memory: the next one needs more.

        Not more than all models may take together: no estimate alone may keep one from being tried.
        """
        pool = resident.pool
        if resident.spec.runs_like(pool.spec):
            known = pool.spec.memory_bytes
            self._learn(pool, max(known, min(int(known * HEADROOM), self._memory.main.total)))

    def _measure_devices(self, resident: Resident) -> None:
        replica, pool = resident.replica, resident.pool
        held = replica.vitals.device_bytes
        if held is None or not replica.answered:
            return
        needed, is_new = self._devices.measure(resident.spec, held)
        self._memory.resize_devices(replica.id, needed)
        if is_new:
            self.reserve(pool.spec, running=pool.running)

    def _learn(self, pool: DeploymentPool, needed: int) -> None:
        """What one replica of a deployment needs."""
        self._measured[pool.spec.id] = needed
        pool.set_memory(needed)
        self.reserve(pool.spec, running=pool.running)
        self._listener.measured(pool.spec)


def _reserved(spec: DeploymentSpec) -> Need:
    """What is kept for a `hot` deployment."""
    return Need(spec.id, spec.memory_bytes * _replicas(spec), spec.account_id)


def _replicas(spec: DeploymentSpec) -> int:
    return max(1, spec.min_replicas)
