"""What a runtime is told of a deployment."""

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


@dataclass(frozen=True, kw_only=True)
class DeploymentSpec:
    """What a runtime needs to know to run a deployment."""

    id: str
    """What the runtime knows it by: of a version, where a deployment has several."""
    account_id: str
    model: str
    pipeline: str
    source: str
    """Id of the artifact's live upload, or the name of an operator's folder."""
    deployment_id: str = ""
    """Whose version it is; nothing: `id` names the deployment itself. See `deployment`."""
    readiness: Readiness = Readiness.COLD
    engine: str = "auto"
    device: str = "auto"
    dtype: str = "auto"
    min_replicas: int = 0
    max_replicas: int = 1
    idle_timeout_s: float = 300.0
    max_queue: int = 256
    memory_bytes: int = 0
    """What one replica needs of memory, as far as is known: measured before, or estimated."""
    config: Mapping[str, Any] = field(default_factory=dict[str, Any])
    has_adapters: bool = False
    """Whether calls may name adapters: what runs it has a place for them."""

    @property
    def deployment(self) -> str:
        """The id of what is billed, counted and logged: all versions of a deployment alike."""
        return self.deployment_id or self.id

    @property
    def version(self) -> str:
        """The id of the version that it is; empty for a trial, which is of none."""
        is_trial = is_a(Prefix.TRIAL, self.deployment_id)
        return self.id if self.deployment_id and not is_trial else ""

    def runs_like(self, other: "DeploymentSpec") -> bool:
        """Whether replicas of one can serve the other, and need as much memory."""
        return self._process == other._process

    @property
    def _process(self) -> tuple[Any, ...]:
        how = (self.engine, self.device, self.dtype, self.config, self.has_adapters)
        return (self.source, self.pipeline, *how)
