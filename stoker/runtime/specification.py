"""Specification of a deployment, as a runtime receives it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from stoker.base.ids import Prefix, is_a


class Readiness(StrEnum):
    COLD = "cold"
    """Scales to zero after the idle timeout; starts on request."""
    WARM = "warm"
    """Stays loaded while memory allows."""
    HOT = "hot"
    """Always loaded."""

    @property
    def stays_loaded(self) -> bool:
        return self is not Readiness.COLD

    @staticmethod
    def of(stored: str) -> "Readiness":
        """Returns the readiness of a row. A value of a later release counts as cold."""
        return next((known for known in Readiness if known == stored), Readiness.COLD)


@dataclass(frozen=True, kw_only=True)
class DeploymentSpec:
    """All data that a runtime needs to run a deployment."""

    id: str
    """Id in the runtime: the version's id if the deployment has versions."""
    account_id: str
    model: str
    pipeline: str
    source: str
    """Id of the artifact's live upload, or the name of an operator's folder."""
    deployment_id: str = ""
    """Id of the deployment with this version. Empty if `id` is the deployment itself. See
    `deployment`.
    """
    readiness: Readiness = Readiness.COLD
    engine: str = "auto"
    device: str = "auto"
    dtype: str = "auto"
    min_replicas: int = 0
    max_replicas: int = 1
    idle_timeout_s: float = 300.0
    max_queue: int = 256
    memory_bytes: int = 0
    """Bytes of memory that one replica needs, as currently known: measured before, or estimated."""
    weight_bytes: int = 0
    """Bytes of the model's weights, if `memory_bytes` was estimated from them. 0 if it was measured
    or the weights are unknown.
    """
    config: Mapping[str, Any] = field(default_factory=dict[str, Any])
    has_adapters: bool = False
    """True if calls may name adapters and replicas have a folder for them."""

    @property
    def deployment(self) -> str:
        """Id for billing, counts and logs. All versions of a deployment share it."""
        return self.deployment_id or self.id

    @property
    def version(self) -> str:
        """Id of the version. Empty for a trial, which belongs to no version."""
        is_trial = is_a(Prefix.TRIAL, self.deployment_id)
        return self.id if self.deployment_id and not is_trial else ""

    @property
    def is_warm(self) -> bool:
        """True if its replicas are evicted after those of `cold` deployments."""
        return self.readiness is Readiness.WARM or self.min_replicas > 0

    def runs_like(self, other: "DeploymentSpec") -> bool:
        """Returns True if replicas of one specification can serve the other with the same
        memory.
        """
        return self._process == other._process

    @property
    def _process(self) -> tuple[Any, ...]:
        how = (self.engine, self.device, self.dtype, self.config, self.has_adapters)
        return (self.source, self.pipeline, *how)
