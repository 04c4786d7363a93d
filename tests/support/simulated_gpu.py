"""A machine with one GPU, as a runtime sees it: processes that hold the GPU's memory, its driver,
and checkpoints. Everything above is real: allocator, pools, launcher, supervision.
"""

import asyncio
import contextlib
import itertools
import json
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stoker.base.config import MIB, Settings
from stoker.models.llm.engines.memory import WORK_BYTES
from stoker.runtime.interface import LoadError
from stoker.runtime.local import runtime as runtime_module
from stoker.runtime.local.conversions import preparations
from stoker.runtime.local.memory.devices import Device, ProcessBytes
from stoker.runtime.local.memory.memory import MemoryAllocator
from stoker.runtime.local.processes import gpu_sandbox, processes
from stoker.runtime.local.runtime import LocalRuntime
from stoker.runtime.pool.deployment_pool import DeploymentPool
from stoker.runtime.pool.handle import ReplicaHandle
from stoker.runtime.pool.launcher import SleepError
from stoker.runtime.specification import DeploymentSpec
from stoker.wire.passes import Batches
from stoker.wire.protocol import (
    Cancel,
    Cancelled,
    FromReplica,
    Heartbeat,
    Loaded,
    LoadFailed,
    ReplicaSpec,
    RequestResult,
    Shutdown,
    ToReplica,
    Work,
)
from tests.support.graphics import device

GIB = 1024 * MIB
CONTEXT = 716 * MIB
"""Real memory of CUDA's context and libraries."""
MAIN_BYTES = 300 * MIB
"""Main memory of a process."""
HANG_S = 120.0
"""Timeout of a checkpoint in seconds."""
_FIRST_PID = 10_000_000
"""Above any process id of Linux, so that no real process is meant."""
_SETTINGS: dict[str, Any] = {"memory_budget_mib": 200 * 1024, "gpu_prepared_workers": 0}
_decode = msgspec.msgpack.Decoder(ToReplica).decode


@dataclass(frozen=True)
class Durations:
    """Seconds that the machine takes."""

    load: float = 1.3
    answer: float = 0.02
    end: float = 0.1
    sleep: float = 1.4
    wake: float = 0.7


class Gpu:
    """Memory of the card. Fails a test that allocates more than it has."""

    def __init__(self, total_bytes: int) -> None:
        self.device = device(0, total_bytes)
        self.held: dict[int, int] = {}
        """Maps a process to its bytes."""
        self.other_bytes = 0
        self.most_used = 0
        self.is_present = True
        self.problem = ""
        """Reason that the driver's program gives no answer."""

    @property
    def used(self) -> int:
        return sum(self.held.values()) + self.other_bytes

    def allocate(self, pid: int, size: int) -> None:
        assert pid not in self.held
        self.held[pid] = size
        assert self.used <= self.device.total_bytes, "the card is overrun"
        self.most_used = max(self.most_used, self.used)

    def free(self, pid: int) -> None:
        self.held.pop(pid, None)

    def table(self) -> Sequence[Device]:
        if self.problem:
            return []
        other = device(1, 1 << 20)
        present = [replace(self.device, used_bytes=self.used)] if self.is_present else []
        # A driver that lists no device may only be busy.
        return [*present, replace(other, used_bytes=0)]

    def processes(self) -> ProcessBytes:
        return {}


class Process:
    """A replica's process. It computes one call after the other."""

    def __init__(self, machine: "Machine", pid: int, spec: ReplicaSpec) -> None:
        self.machine = machine
        self.pid = pid
        self.spec = spec
        self.wire = machine.wires[spec.address]
        self.wire.process = self
        self.is_asleep = False
        self.is_stuck = False
        """True once it neither answers nor sends a heartbeat."""
        self._busy_until = 0.0
        self._pending: set[int] = set()
        self._tasks = [self._begin(self._load()), self._begin(self._beat())]

    @property
    def deployment(self) -> str:
        return Path(self.spec.log_path).stem

    @property
    def device_bytes(self) -> int:
        return self.machine.device_bytes

    async def _load(self) -> None:
        await asyncio.sleep(self.machine.durations.load)
        if not self.machine.gpu.is_present:
            self.tell(LoadFailed("CUDA error: no device"))
            self.machine.ends(self, 1)
            return
        self.machine.gpu.allocate(self.pid, self.device_bytes + CONTEXT)
        self.tell(Loaded(self.machine.durations.load, convertible=False, device="cuda:0"))

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(1)
            moved = self.device_bytes + CONTEXT if self.is_asleep else 0
            self.tell(
                Heartbeat(
                    progress=0,
                    accepted=len(self._pending),
                    memory_bytes=MAIN_BYTES + moved,
                    own_bytes=MAIN_BYTES + moved,
                    busy_s=0.0,
                    engine="torch",
                    cache_usage=None,
                    batches=Batches(),
                    device_bytes=self.device_bytes,
                )
            )

    def tell(self, message: FromReplica, content: bytes = b"") -> None:
        if not self.is_stuck:
            self.wire.receive(message, content)

    def hear(self, message: ToReplica) -> None:
        match message:
            case Work():
                assert not self.is_asleep, "a sleeping replica got a call"
                self._pending.add(message.id)
                self._tasks.append(self._begin(self._answer(message.id)))
            case Cancel():
                self._pending.discard(message.id)
                self.tell(Cancelled(message.id))
            case Shutdown():
                self.machine.ends(self, 0)
            case _:
                raise AssertionError(message)

    async def _answer(self, number: int) -> None:
        now = asyncio.get_running_loop().time()
        self._busy_until = max(now, self._busy_until) + self.machine.durations.answer
        await asyncio.sleep(self._busy_until - now)
        if number in self._pending and not self.is_stuck:
            self._pending.discard(number)
            self.tell(RequestResult(number), self.deployment.encode())

    def stop(self) -> None:
        for task in self._tasks:
            task.cancel()

    def _begin(self, work: Any) -> "asyncio.Task[None]":
        return asyncio.get_running_loop().create_task(work)


class Wire:
    """Stands in for the socket of a replica."""

    def __init__(self) -> None:
        self.process: Process | None = None
        self._received: Callable[[list[bytes]], None] = lambda _: None

    def listen(self, received: Callable[[list[bytes]], None]) -> None:
        self._received = received

    def send(self, frames: Sequence[bytes]) -> None:
        if self.process:
            self.process.hear(_decode(frames[0]))

    def receive(self, message: FromReplica, content: bytes) -> None:
        self._received([msgspec.msgpack.encode(message), content])

    def close(self) -> None: ...


class Machine:
    """The engine host and all processes."""

    ready = started = True
    own_pid = 0
    problem = None

    def __init__(self, gpu: Gpu, device_bytes: int, durations: Durations | None = None) -> None:
        """
        Args:
            device_bytes: bytes that torch holds in each replica.
        """
        self.gpu = gpu
        self.device_bytes = device_bytes
        self.durations = durations or Durations()
        self.wires: dict[str, Wire] = {}
        self.running: dict[str, Process] = {}
        """Maps a replica to its process."""
        self.forks: list[str] = []
        """Deployments of the started processes, in order."""
        self.moves: list[tuple[str, int]] = []
        """`sleep` or `wake`, with the process."""
        self.cannot_be_killed = False
        """True if processes hang in the kernel, where no signal ends them."""
        self.driver_hangs = False
        """True if checkpoints hang until their timeout."""
        self._pids = itertools.count(_FIRST_PID)
        self._on_exit: Callable[[str, int], None] = lambda _id, _status: None

    # --- as `EngineHost` ---

    def host(self, _log: Path, on_exit: Callable[[str, int], None], **_options: Any) -> "Machine":
        self._on_exit = on_exit
        return self

    def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def wait_ready(self) -> None: ...

    def look(self) -> None: ...

    def preload(self, _wanted: Any) -> None: ...

    def listen(self, *_receivers: object) -> None:
        """Ignores the receivers of reports about prepared workers: there are none."""

    def fork(self, spec: ReplicaSpec) -> None:
        assert spec.device.startswith("cuda"), "it must not run on the CPU"
        process = self.running[spec.id] = Process(self, next(self._pids), spec)
        self.forks.append(process.deployment)

    def kill(self, replica_id: str) -> None:
        process = self.running.get(replica_id)
        if process and not self.cannot_be_killed:
            self.ends(process, -9)

    def pid(self, replica_id: str) -> int | None:
        process = self.running.get(replica_id)
        return process.pid if process else None

    def ends(self, process: Process, status: int) -> None:
        """Ends a process. Its memory is free a moment later."""

        def gone() -> None:
            if self.running.pop(process.spec.id, None):
                process.stop()
                self.gpu.free(process.pid)
                self._on_exit(process.spec.id, status)

        asyncio.get_running_loop().call_later(self.durations.end, gone)

    def process(self, pid: int) -> Process:
        """Returns a running process. Raises `SleepError`."""
        for process in self.running.values():
            if process.pid == pid:
                return process
        raise SleepError("its process has ended")

    # --- as `Channel` ---

    def channel(self, path: str, _secret: bytes) -> Wire:
        return self.wires.setdefault(path, Wire())


class Checkpoints:
    """The driver's checkpoints of the machine's processes."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.is_supported = False

    async def start(self) -> None:
        self.is_supported = True

    async def close(self) -> None: ...

    async def sleep(self, pid: int) -> None:
        machine = self._machine
        machine.moves.append(("sleep", pid))
        machine.process(pid).is_asleep = True
        await self._moved(machine.durations.sleep)
        machine.process(pid)
        machine.gpu.free(pid)

    async def wake(self, pid: int) -> None:
        machine = self._machine
        process = machine.process(pid)
        assert process.is_asleep
        machine.moves.append(("wake", pid))
        machine.gpu.allocate(pid, process.device_bytes + CONTEXT)
        await self._moved(machine.durations.wake)
        machine.process(pid).is_asleep = False

    async def _moved(self, seconds: float) -> None:
        if self._machine.driver_hangs:
            await asyncio.sleep(HANG_S)
            raise SleepError("the driver did not answer within 120 s")
        await asyncio.sleep(seconds)


def write_weights(folder: Path, size: int) -> None:
    """Writes a file of weights in half precision, without their content."""
    header = json.dumps({"w": {"dtype": "F16", "shape": [size // 2], "data_offsets": [0, size]}})
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header.encode())
        file.truncate(8 + len(header) + size)


class Folders:
    """Finds the same folder for each model."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def folder(self, spec: DeploymentSpec, *, is_ahead: bool = False) -> Path:
        if not self._folder.exists():
            raise LoadError("it is not there.")
        return self._folder

    async def content(self, spec: DeploymentSpec) -> str:
        return ""


@contextlib.asynccontextmanager
async def runtime_on(
    machine: Machine, folder: Path, monkeypatch: pytest.MonkeyPatch, **settings: Any
) -> Any:
    """Yields a running `LocalRuntime` on a simulated machine, within a `VirtualLoop`."""
    clock = asyncio.get_running_loop().time
    monkeypatch.setattr(runtime_module, "EngineHost", machine.host)
    monkeypatch.setattr(runtime_module, "MemoryAllocator", partial(MemoryAllocator, clock=clock))
    monkeypatch.setattr(runtime_module, "DeploymentPool", partial(DeploymentPool, clock=clock))
    monkeypatch.setattr(processes, "ReplicaHandle", partial(ReplicaHandle, clock=clock))
    monkeypatch.setattr(processes, "Channel", machine.channel)
    monkeypatch.setattr(gpu_sandbox.gpu_places, "has_nvidia", lambda: False)
    monkeypatch.setattr(preparations, "read_ahead", lambda _folder: None)
    model = folder / "model"
    model.mkdir(exist_ok=True)
    write_weights(model, machine.device_bytes - WORK_BYTES)
    runtime = LocalRuntime(
        Settings(data_dir=folder / "data", **(_SETTINGS | settings)),
        Folders(model),  # type: ignore[arg-type]
        devices=machine.gpu,
        checkpoints=Checkpoints(machine),
    )
    await runtime.start([])
    try:
        yield runtime
    finally:
        await runtime.stop()
        for process in list(machine.running.values()):
            process.stop()


def no_budget_is_exceeded(runtime: LocalRuntime) -> Iterator[str]:
    """Yields each budget whose claims are more than its total."""
    for budget in (runtime._memory.main, *runtime._memory.devices):
        if budget.held > budget.total:
            yield f"{budget.name}: {budget.held} of {budget.total}"
