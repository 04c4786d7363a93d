"""Claims of replicas whose GPU memory is in main memory, or on its way there."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from stoker.runtime.local.memory.budget import Budget
from stoker.runtime.local.memory.candidates import EvictionCandidate
from stoker.runtime.local.memory.devices import Device, DeviceNeed


@dataclass
class _Sleeper:
    main_bytes: int
    """Bytes that its sleep adds to its claim on main memory."""
    sizes: Mapping[Budget, int]
    """Claims on devices while it is awake."""
    rest: Mapping[Budget, int] = field(default_factory=dict[Budget, int])
    """Claims on devices that it keeps while it sleeps."""


class Sleepers:
    def __init__(self, main: Budget, devices: Sequence[Budget]) -> None:
        self._main = main
        self._devices = devices
        self._sleepers: dict[str, _Sleeper] = {}

    def __contains__(self, replica_id: str) -> bool:
        return replica_id in self._sleepers

    def main_bytes(self, replica_id: str) -> int:
        """Returns the bytes of main memory that hold a replica's GPU memory. 0 if it is awake."""
        sleeper = self._sleepers.get(replica_id)
        return sleeper.main_bytes if sleeper else 0

    def begin(self, candidate: EvictionCandidate, spare: int) -> bool:
        """Extends a replica's claim on main memory by what it moves there.

        Returns False if main memory has no room for that and for `spare` bytes. Also returns False
        if the driver would have to move the memory of several devices.
        """
        replica_id, moved = candidate.replica_id, candidate.moved_bytes
        sizes = {book: book.size(replica_id) for book in self._devices if book.has(replica_id)}
        if moved is None and len(sizes) == 1:
            (moved,) = sizes.values()
        if not sizes or moved is None or not self._main.grow(replica_id, moved, spare):
            return False
        self._sleepers[replica_id] = _Sleeper(moved, sizes)
        for book in sizes:
            book.ending(replica_id)
        return True

    def keep(self, replica_id: str, rest: Callable[[Device], int]) -> None:
        """Records what a replica still holds of its devices while it sleeps."""
        if sleeper := self._sleepers.get(replica_id):
            sleeper.rest = {
                book: min(size, rest(book.device))
                for book, size in sleeper.sizes.items()
                if book.device
            }

    def leave(self, replica_id: str) -> bool:
        """Reduces a replica's claims on devices to what it holds while it sleeps. Removes them if
        it is awake. Returns True if a claim changed.
        """
        sleeper = self._sleepers.get(replica_id)
        rest = sleeper.rest if sleeper else dict[Budget, int]()
        changed = [book.strike(replica_id, rest.get(book, 0)) for book in self._devices]
        return any(changed)

    def need(self, replica_id: str) -> DeviceNeed:
        """Returns what a replica needs of its devices to wake, in addition to what it holds."""
        sleeper = self._sleepers[replica_id]
        sizes = {
            book.device.index: size - sleeper.rest.get(book, 0)
            for book, size in sleeper.sizes.items()
            if book.device
        }
        index = next(iter(sizes)) if len(sizes) == 1 else None
        return DeviceNeed(sizes=sizes, count=len(sizes), index=index)

    def end(self, replica_id: str) -> int:
        """Removes a replica that is awake or has ended. Returns the bytes of main memory that its
        sleep had added.
        """
        sleeper = self._sleepers.pop(replica_id, None)
        return sleeper.main_bytes if sleeper else 0
