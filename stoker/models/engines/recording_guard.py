"""Notes which pass is being recorded, so that a recording that ends the process is not repeated.

The driver may abort the process, or the device may be unusable after an error. The gateway reads
the note after the process has ended.
"""

import contextlib
from collections.abc import Callable, Collection, Generator
from dataclasses import dataclass

from stoker.wire.passes import MOST_LOST


class DeviceLostError(Exception):
    """Raised if the device can no longer compute in this process."""


def _ignore(_name: str) -> None: ...


@dataclass(frozen=True)
class RecordingGuard:
    """Decides which passes may be recorded, and notes the one that is being recorded."""

    note: Callable[[str], None] = _ignore
    """Stores the name of a pass outside of this process. Empty means none."""
    lost: Collection[str] = ()
    """Names of passes that ended earlier replicas."""

    @property
    def problem(self) -> str:
        """Reason that no pass may be recorded. Empty if passes may be recorded."""
        if len(self.lost) < MOST_LOST:
            return ""
        return "Earlier replicas ended while they recorded passes."

    def allows(self, name: str) -> bool:
        return not self.problem and name not in self.lost

    @contextlib.contextmanager
    def recording(self, name: str) -> Generator[None]:
        """Notes the pass within the block. The note stays if the block raises `DeviceLostError`,
        because the process ends then.
        """
        self.note(name)
        try:
            yield
        except DeviceLostError:
            raise
        except BaseException:
            self.note("")
            raise
        self.note("")
