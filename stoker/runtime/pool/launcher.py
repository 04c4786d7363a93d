"""What a deployment's pool needs of the machine."""

from dataclasses import dataclass
from typing import Protocol

from stoker.runtime.interface import DeploymentSpec
from stoker.runtime.pool.handle import Replica
from stoker.wire.protocol import Execution


@dataclass(frozen=True)
class Limits:
    load_timeout_s: float
    heartbeat_timeout_s: float
    stall_timeout_s: float
    stop_grace_s: float


class Launcher(Protocol):
    async def claim(self, spec: DeploymentSpec, *, is_needed: bool) -> str | None:
        """Wait until there is memory for a replica, and return the id that has it.

        One that is not needed does not wait, and nobody gives way for it: None where there is no
        room now. Raises `CapacityError` where it can never fit.
        """
        ...

    async def launch(self, spec: DeploymentSpec, generation: int, replica_id: str) -> Replica:
        """Fork a replica that has its memory, still loading.

        Raises `LoadError` where that much fails; the memory is free again then.
        """
        ...

    def has_room(self, spec: DeploymentSpec) -> bool:
        """Whether a replica would fit without anyone giving way."""
        ...

    def shortage(self, spec: DeploymentSpec) -> str:
        """What a replica waits for that has no memory yet, in numbers."""
        ...

    def leaving(self, replica_id: str) -> None:
        """A replica is about to end."""
        ...

    def is_funded(self, spec: DeploymentSpec) -> bool:
        """Whether its account can pay for what it holds."""
        ...

    def set_aside(self, execution: Execution, reason: str) -> str:
        """Have later replicas go without what one of them ran on. Returns that in words."""
        ...

    def kill(self, replica_id: str) -> None: ...

    def pid(self, replica_id: str) -> int | None: ...
