"""A simulated machine with graphics devices, which exist only as a table."""

import asyncio
import os
import signal
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from stoker.base.config import MIB, Settings
from stoker.runtime.interface import ModelLocator
from stoker.runtime.local.memory.device_sizing import DeviceSizing
from stoker.runtime.local.memory.devices import Device, ProcessBytes
from stoker.runtime.local.processes.prepared_workers import PreparedWorkers
from stoker.runtime.local.runtime import LocalRuntime
from stoker.runtime.pool.handle import ReplicaHandle
from stoker.runtime.pool.launcher import SleepError
from stoker.runtime.specification import DeploymentSpec

SLOW_MOVES = "slow-moves"


def device(index: int, total_bytes: int) -> Device:
    return Device(index=index, uuid=f"GPU-{index:08}", name="Tester 100", total_bytes=total_bytes)


class Table:
    """Stands in for the driver's device table. The test chooses the devices."""

    def __init__(self, devices: Sequence[Device]) -> None:
        self.there = list(devices)
        self.holding: dict[int, dict[str, int]] = {}

    problem = ""

    def table(self) -> Sequence[Device]:
        return list(self.there)

    def processes(self) -> ProcessBytes:
        return self.holding


def with_two_devices(
    settings: Settings, folders: ModelLocator, unfunded: Callable[[], Collection[str]]
) -> LocalRuntime:
    """Builds a runtime with two devices, for `STOKER_RUNTIME`."""
    table = Table([device(0, 1024 * MIB), device(1, 4096 * MIB)])
    return LocalRuntime(_without_prepared(settings), folders, unfunded, table)


class StoppedProcesses:
    """Stands in for the driver's checkpoints: a process that sleeps is stopped."""

    is_supported = True

    def __init__(self, folder: Path) -> None:
        """
        Args:
            folder: moves do not end while its file `SLOW_MOVES` names them: `sleep` or `wake`.
        """
        self._slow = folder / SLOW_MOVES

    async def start(self) -> None: ...

    async def sleep(self, pid: int) -> None:
        _signal(pid, signal.SIGSTOP)
        await self._move("sleep")
        _signal(pid, signal.SIGSTOP)

    async def wake(self, pid: int) -> None:
        await self._move("wake")
        _signal(pid, signal.SIGCONT)

    async def _move(self, action: str) -> None:
        while self._slow.exists() and self._slow.read_text() == action:
            await asyncio.sleep(0.02)

    async def close(self) -> None: ...


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        raise SleepError("its process has ended") from None


def with_sleep(
    settings: Settings, folders: ModelLocator, unfunded: Callable[[], Collection[str]]
) -> LocalRuntime:
    """Builds a runtime with a device that holds one small replica, for `STOKER_RUNTIME`.

    Replicas compute on the CPU and hold the claimed bytes of the device.
    """
    DeviceSizing.measure = _as_claimed
    ReplicaHandle.is_on_cpu = False  # type: ignore[assignment]
    table = Table([device(0, 1200 * MIB)])
    checkpoints = StoppedProcesses(settings.data_dir)
    return LocalRuntime(_without_prepared(settings), folders, unfunded, table, checkpoints)


def with_prepared_workers(
    settings: Settings, folders: ModelLocator, unfunded: Callable[[], Collection[str]]
) -> LocalRuntime:
    """Builds a runtime with a device and prepared workers without a context, for `STOKER_RUNTIME`.

    Replicas compute on the CPU and hold the claimed bytes of the device.
    """
    DeviceSizing.measure = _as_claimed
    ReplicaHandle.is_on_cpu = False  # type: ignore[assignment]
    PreparedWorkers.device = "cpu"
    return LocalRuntime(settings, folders, unfunded, Table([device(0, 4096 * MIB)]))


def _without_prepared(settings: Settings) -> Settings:
    return settings.model_copy(update={"gpu_prepared_workers": 0})


def _as_claimed(
    sizing: DeviceSizing, spec: DeploymentSpec, _held: int, _context: int | None = None
) -> tuple[int, bool]:
    wanted = sizing.wanted(spec)
    return (wanted.size if wanted else 0), False
