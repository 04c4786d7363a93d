"""A simulated machine with graphics devices, which exist only as a table."""

from collections.abc import Callable, Collection, Sequence

from stoker.base.config import MIB, Settings
from stoker.runtime.interface import ModelLocator
from stoker.runtime.local.memory.devices import Device
from stoker.runtime.local.runtime import LocalRuntime


def device(index: int, total_bytes: int) -> Device:
    return Device(index=index, uuid=f"GPU-{index:08}", name="Tester 100", total_bytes=total_bytes)


class Table:
    """Stands in for the driver's device table. The test chooses the devices."""

    def __init__(self, devices: Sequence[Device]) -> None:
        self.there = list(devices)

    def table(self) -> Sequence[Device]:
        return list(self.there)


def with_two_devices(
    settings: Settings, folders: ModelLocator, unfunded: Callable[[], Collection[str]]
) -> LocalRuntime:
    """Builds a runtime with two devices, for `STOKER_RUNTIME`."""
    table = Table([device(0, 1024 * MIB), device(1, 4096 * MIB)])
    return LocalRuntime(settings, folders, unfunded, table)
