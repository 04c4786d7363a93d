"""A machine with graphics devices, of which there is a table alone."""

from collections.abc import Callable, Collection, Sequence

from stoker.base.config import MIB, Settings
from stoker.runtime.interface import ModelLocator
from stoker.runtime.local.memory.devices import Device
from stoker.runtime.local.runtime import LocalRuntime


def device(index: int, total_bytes: int) -> Device:
    return Device(index=index, uuid=f"GPU-{index:08}", name="Tester 100", total_bytes=total_bytes)


class Table:
    """The driver's, as the test says."""

    def __init__(self, devices: Sequence[Device]) -> None:
        self.there = list(devices)

    def table(self) -> Sequence[Device]:
        return list(self.there)


def with_two_devices(
    settings: Settings, folders: ModelLocator, unfunded: Callable[[], Collection[str]]
) -> LocalRuntime:
    """A runtime for `STOKER_RUNTIME`."""
    table = Table([device(0, 1024 * MIB), device(1, 4096 * MIB)])
    return LocalRuntime(settings, folders, unfunded, table)
