"""Pool of one deployment with a clock and a launcher that the test controls."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec

from stoker.base.errors import CapacityError
from stoker.runtime.interface import Call, LoadError
from stoker.runtime.listening import RuntimeListener, Served
from stoker.runtime.observed import DeviceClaim, Reason, Status
from stoker.runtime.pool.callbacks import ReplicaCallbacks
from stoker.runtime.pool.deployment_pool import DeploymentPool
from stoker.runtime.pool.handle import ReplicaHandle
from stoker.runtime.pool.launcher import Limits, SleepError
from stoker.runtime.specification import DeploymentSpec
from stoker.wire.protocol import (
    Execution,
    FromReplica,
    Loaded,
    Loading,
    RequestResult,
    Shutdown,
    pack,
)

CALL = Call(task="fill-mask", items=["a"], parameters={}, single=True)
SPEC = DeploymentSpec(id="dep_1", account_id="acct_1", model="m", pipeline="fill-mask", source="s")
SHUTDOWN = pack(Shutdown())
EXECUTION = Execution("/converted", "bf16", "/compiled")
LIMITS = Limits(load_timeout_s=5, heartbeat_timeout_s=10, stall_timeout_s=30, stop_grace_s=5)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Wire:
    """Records sent frames. The test supplies the replies."""

    def __init__(self) -> None:
        self.sent: list[list[bytes]] = []

    def listen(self, received: Any) -> None:
        self._received = received

    def receive(self, message: FromReplica | None = None, content: bytes = b"") -> None:
        """Receives a message. The default is an unimportant one that shows that the replica is
        alive.
        """
        self._received([msgspec.msgpack.encode(message or Loading(1.0, "")), content])

    def send(self, frames: list[bytes]) -> None:
        self.sent.append(frames)

    def close(self) -> None: ...


class Flight:
    """Requests that a replica works on, as set by the test."""

    def __init__(self) -> None:
        self.preparing: set[int] = set()
        self.running: set[int] = set()
        self.recording = ""

    def read_slots(self) -> tuple[set[int], set[int]]:
        return self.preparing, self.running

    def read_recording(self) -> str:
        return self.recording

    def remove(self) -> None: ...


class Launcher:
    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.callbacks = ReplicaCallbacks()
        self.launched: list[ReplicaHandle] = []
        self.killed: list[str] = []
        self.fail: str | None = None
        self.lasting = False
        self.too_large = False
        self.funded = True
        self.prices: list[tuple[float, str, bool]] = []
        """Changes to the price of background work and back, with their times."""
        self.quarantined: list[tuple[Execution, str]] = []
        self.memory = asyncio.Event()
        self.memory.set()
        self.moves: list[tuple[str, str]] = []
        """Moves of GPU memory: `sleep`, `claim` or `wake`, with the replica."""
        self.failing: set[str] = set()
        """Moves that fail."""
        self.moved = asyncio.Event()
        """Set unless moves to main memory hang."""
        self.moved.set()
        self.woken = asyncio.Event()
        """Set unless moves back to the GPU hang."""
        self.woken.set()
        self.broken = False
        """True if moves to main memory fail in an unexpected way."""
        self.ended: set[str] = set()
        self.device = asyncio.Event()
        """Set if the GPU has room."""

    async def claim(self, spec: DeploymentSpec, *, is_needed: bool) -> str | None:
        if self.too_large:
            raise CapacityError("It needs 9 GiB.", code="insufficient_memory")
        if not is_needed and not self.memory.is_set():
            return None
        await self.memory.wait()
        return f"rep_{len(self.launched)}"

    def has_room(self, spec: DeploymentSpec) -> bool:
        return self.memory.is_set()

    def shortage(self, spec: DeploymentSpec) -> str:
        return "It needs 3 GiB."

    def ending(self, replica_id: str) -> None: ...

    def set_flex(self, replica_id: str, *, is_flex: bool) -> None:
        self.prices.append((self.clock(), replica_id, is_flex))

    def is_funded(self, spec: DeploymentSpec) -> bool:
        return self.funded

    async def launch(self, spec: DeploymentSpec, generation: int, replica_id: str) -> ReplicaHandle:
        if self.fail:
            raise LoadError(self.fail, lasting=self.lasting)
        channel: Any = Wire()
        replica = ReplicaHandle(
            replica_id=replica_id,
            flight=Flight(),
            generation=generation,
            channel=channel,
            clock=self.clock,
            callbacks=self.callbacks,
        )
        self.launched.append(replica)
        return replica

    async def sleep(self, replica_id: str) -> None:
        self._move("sleep", replica_id)
        if self.broken:
            raise RuntimeError("unexpected")
        await self.moved.wait()
        if replica_id in self.ended:
            raise SleepError("its process has ended")

    async def wake(self, replica_id: str) -> None:
        self._move("wake", replica_id)
        await self.woken.wait()

    async def claim_device(self, spec: DeploymentSpec, replica_id: str, *, is_needed: bool) -> bool:
        if not is_needed and not self.device.is_set():
            return False
        self._move("claim", replica_id)
        await self.device.wait()
        return True

    def has_device_room(self, spec: DeploymentSpec, replica_id: str) -> bool:
        return self.device.is_set()

    def _move(self, name: str, replica_id: str) -> None:
        self.moves.append((name, replica_id))
        if name in self.failing:
            raise SleepError("the driver is busy")

    def quarantine(self, execution: Execution, reason: str) -> str:
        self.quarantined.append((execution, reason))
        return f"{reason} It is set aside."

    def kill(self, replica_id: str) -> None:
        self.killed.append(replica_id)

    def devices(self, replica_id: str) -> Sequence[DeviceClaim]:
        return ()

    def pid(self, replica_id: str) -> int | None:
        return 1


class Recorder(RuntimeListener):
    def __init__(self) -> None:
        self.changes: list[tuple[Status, Reason]] = []
        self.calls: list[Served] = []
        self.told: list[str] = []
        """Notifications of calls that waited for a replica."""

    def waits(self) -> None:
        self.told.append("waits")

    def given(self) -> None:
        self.told.append("given")

    def changed(self, spec: DeploymentSpec, status: Status, reason: Reason, message: str) -> None:
        self.changes.append((status, reason))

    def served(self, call: Served) -> None:
        self.calls.append(call)


class World:
    def __init__(self, listener: RuntimeListener | None = None, **spec: Any) -> None:
        self.clock = Clock()
        self.recorder = Recorder()
        self._spec, self._listener = replace(SPEC, **spec), listener or self.recorder
        self.use(Launcher(self.clock))

    def use(self, launcher: Launcher) -> None:
        """Starts again with another launcher."""
        self.launcher = launcher
        self.pool = DeploymentPool(
            spec=self._spec,
            running=True,
            launcher=launcher,
            limits=LIMITS,
            listener=self._listener,
            clock=self.clock,
        )

    def call(self, wait_s: float = 60) -> "asyncio.Task[bytes]":
        return asyncio.create_task(self.pool.call(CALL, wait_s=wait_s, timeout_s=60))

    async def loaded(self, index: int = -1) -> ReplicaHandle:
        await settle()
        replica = self.launcher.launched[index]
        wire: Any = replica.channel
        wire.receive(Loaded(1.0, convertible=False))
        await settle()
        return replica

    async def answer_first(self, replica: ReplicaHandle) -> None:
        """Answers the oldest call after a second."""
        self.clock.now += 1
        answer = next(candidate for candidate in replica.pending.values() if not candidate.ended)
        answer.add(b"[]")
        answer.end()
        await settle()

    def answer(self, replica: ReplicaHandle) -> None:
        for answer in replica.pending.values():
            if not answer.ended:
                answer.add(b"[]")
                answer.end()
        answer_unknown(replica)


def answer_unknown(replica: ReplicaHandle, count: int = 1) -> None:
    """Makes the replica answer calls that it has no record of."""
    wire: Any = replica.channel
    for _ in range(count):
        wire.receive(RequestResult(0))


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)
