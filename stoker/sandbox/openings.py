"""Names of the walls, and the openings that a machine's GPU driver may need in them."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Wall(StrEnum):
    FILES = "files"
    NAMESPACES = "namespaces"
    """Separate network and user namespaces. Without them, other walls still block the network."""
    NETWORK = "network"
    """Namespaces, and the rules of other walls against sockets of the Internet."""
    SYSTEM_CALLS = "system calls"
    SOCKETS = "sockets"
    """Second seccomp filter, installed after the process has connected. Replicas on a GPU do not
    have it.
    """
    SIGNALS = "signals"
    PROCESSES = "processes"
    CAPABILITIES = "capabilities"
    USER = "user"
    LIMITS = "limits"
    """Limits on open files and on the size of a written file."""


@dataclass(frozen=True)
class Opening:
    """Exception from one wall, for a process that uses a GPU."""

    wall: Wall
    item: str = ""
    """Path, or name of a system call. Empty for the whole wall."""
    is_written: bool = False
    """True if files of the path may be written and controlled, not only read."""

    def __str__(self) -> str:
        if not self.item:
            return f"the wall '{self.wall}' is left out"
        if self.wall is Wall.FILES:
            verb = "read and written" if self.is_written else "read"
            return f"{self.item} may be {verb} (wall '{self.wall}')"
        return f"{self.item} is allowed (wall '{self.wall}')"


def left_out(openings: Iterable[Opening]) -> frozenset[Wall]:
    """Returns the walls that are left out as a whole."""
    return frozenset(opening.wall for opening in openings if not opening.item)
