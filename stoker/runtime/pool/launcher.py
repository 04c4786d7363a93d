"""Interface between a deployment's pool and the machine."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, Self

from stoker.base.config import Settings
from stoker.runtime.observed import DeviceClaim
from stoker.runtime.pool.handle import ReplicaHandle
from stoker.runtime.specification import DeploymentSpec
from stoker.wire.protocol import Execution


@dataclass(frozen=True)
class Limits:
    """Limits in seconds, from the settings of the same names."""

    load_timeout_s: float
    heartbeat_timeout_s: float
    stall_timeout_s: float
    stop_grace_s: float

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        return cls(
            load_timeout_s=settings.load_timeout_s,
            heartbeat_timeout_s=settings.heartbeat_timeout_s,
            stall_timeout_s=settings.stall_timeout_s,
            stop_grace_s=settings.stop_grace_s,
        )


class SleepError(Exception):
    """Raised if a replica's GPU memory could not be moved. The replica must be ended."""


class Launcher(Protocol):
    async def claim(self, spec: DeploymentSpec, *, is_needed: bool) -> str | None:
        """Waits for memory for a replica. Returns the id of the replica that holds the claim.

        If it is not needed, does not wait or evict, and returns None if no room is free. Raises
        `CapacityError` if it can never fit.
        """
        ...

    async def launch(self, spec: DeploymentSpec, generation: int, replica_id: str) -> ReplicaHandle:
        """Starts a replica with its claimed memory. Returns while the replica loads.

        Raises `LoadError` if the start fails, and releases the memory.
        """
        ...

    def has_room(self, spec: DeploymentSpec) -> bool:
        """Returns True if a replica would fit without an eviction."""
        ...

    def shortage(self, spec: DeploymentSpec) -> str:
        """Returns how much memory a waiting claim needs and how much is free, in words."""
        ...

    def ending(self, replica_id: str) -> None:
        """Marks a replica that is about to end: its memory will be free."""
        ...

    def set_flex(self, replica_id: str, *, is_flex: bool) -> None:
        """Sets whether a replica's memory costs the price of background work from now on."""
        ...

    def is_funded(self, spec: DeploymentSpec) -> bool:
        """Returns True if the account can pay for the memory that it holds."""
        ...

    def quarantine(self, execution: Execution, reason: str) -> str:
        """Excludes an execution for later replicas. Returns a message that says so."""
        ...

    def kill(self, replica_id: str) -> None:
        """Kills the replica's process, if it exists. Its end is reported like any other."""
        ...

    def devices(self, replica_id: str) -> Sequence[DeviceClaim]:
        """Returns the GPU memory that a replica has claimed. Empty if none, or if it is not
        counted.
        """
        ...

    def pid(self, replica_id: str) -> int | None:
        """Returns the process id. None if the replica has no process on the gateway's machine, or
        none yet.
        """
        ...

    # --- sleep ---

    async def sleep(self, replica_id: str) -> None:
        """Moves a replica's GPU memory to main memory, and releases its claim on the GPU.

        Raises `SleepError`.
        """
        ...

    async def wake(self, replica_id: str) -> None:
        """Moves a replica's memory back to the GPU, which it has claimed. Raises `SleepError`."""
        ...

    async def claim_device(self, spec: DeploymentSpec, replica_id: str, *, is_needed: bool) -> bool:
        """Waits for memory of the GPU that a replica was on. Returns True if it got it.

        If it is not needed, does not wait or evict, and returns False if no room is free. Raises
        `SleepError` if it can never get it.
        """
        ...

    def has_device_room(self, spec: DeploymentSpec, replica_id: str) -> bool:
        """Returns True if a sleeping replica could wake without an eviction."""
        ...
