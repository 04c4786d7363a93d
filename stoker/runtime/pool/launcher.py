"""What a deployment's pool needs of the machine."""

from dataclasses import dataclass
from typing import Protocol

from stoker.runtime.pool.handle import ReplicaHandle
from stoker.runtime.specification import DeploymentSpec
from stoker.wire.protocol import Execution


@dataclass(frozen=True)
class Limits:
    """Seconds, as of the settings of these names."""

    load_timeout_s: float
    heartbeat_timeout_s: float
    stall_timeout_s: float
    stop_grace_s: float


class Launcher(Protocol):
    async def claim(self, spec: DeploymentSpec, *, is_needed: bool) -> str | None:
        """Wait until there is memory for a replica, and return the id that has it.

        One that is not needed does not wait, and evicts nobody: None where there is no room now.
        Raises `CapacityError` where it can never fit.
        """
        ...

    async def launch(self, spec: DeploymentSpec, generation: int, replica_id: str) -> ReplicaHandle:
        """Start a replica that has its memory; it is returned while it loads.

        Raises `LoadError` where that much fails; the memory is free again then.
        """
        ...

    def has_room(self, spec: DeploymentSpec) -> bool:
        """Whether a replica would fit without an eviction."""
        ...

    def shortage(self, spec: DeploymentSpec) -> str:
        """How much memory a waiting claim needs and how much is free, in words."""
        ...

    def ending(self, replica_id: str) -> None:
        """A replica is about to end: its memory will be free."""
        ...

    def is_funded(self, spec: DeploymentSpec) -> bool:
        """Whether its account can pay for what it holds."""
        ...

    def quarantine(self, execution: Execution, reason: str) -> str:
        """Keep later replicas off what one of them ran on. Returns that in words."""
        ...

    def kill(self, replica_id: str) -> None:
        """End its process at once; its end is reported as any other. Nothing, where it is gone."""
        ...

    def pid(self, replica_id: str) -> int | None:
        """None where it has no process on the gateway's machine, or not yet."""
        ...
