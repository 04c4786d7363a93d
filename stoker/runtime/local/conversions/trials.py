"""Results of converted models that were run with the settings of this machine.

A verdict holds for the processor, the number of threads and the precision of its trial. A data
folder on another machine, or a server with other settings, starts without verdicts.
"""

import hashlib
import logging
import os
from pathlib import Path

import msgspec

from stoker.runtime.local.processes.machine import processor
from stoker.wire.conversions import TrialVerdict
from stoker.wire.protocol import Execution, Precision

log = logging.getLogger(__name__)

_MOST_BYTES = 256 << 10
"""Maximum size of a verdict in bytes. A verdict is a page long. Parsing it blocks the event
loop.
"""

_decode = msgspec.json.Decoder(TrialVerdict).decode


class TrialVerdicts:
    """Trial verdicts. They are stored in the folder of the conversion and deleted with it."""

    def __init__(self, threads: int) -> None:
        # At most one thread runs per core, even if more are configured, so the key includes the
        # number of cores.
        cores = len(os.sched_getaffinity(0))
        self._place = _digest(f"{processor()}\n{threads} threads of {cores}")

    def execution(self, folder: Path, precision: Precision) -> Execution:
        cache = folder / f"compiled-{self._place}"
        return Execution(str(folder), precision, str(cache))

    def path(self, execution: Execution) -> Path:
        """Returns the path of an execution's verdict."""
        return Path(execution.folder) / f"trial-{execution.precision}-{self._place}.json"

    def verdict(self, execution: Execution) -> TrialVerdict | None:
        """Returns the verdict. None if the execution was not tested or the file cannot be read."""
        try:
            return _decode(read_bounded(self.path(execution)))
        except (OSError, msgspec.DecodeError):
            return None

    def fail(self, execution: Execution, reason: str) -> None:
        """Quarantines an execution, regardless of its previous verdict."""
        path = self.path(execution)
        part = path.with_suffix(".part")
        try:
            part.write_bytes(msgspec.json.encode(TrialVerdict(passed=False, reason=reason)))
            part.replace(path)
        except OSError:
            # The folder was deleted with the last deployment of the model.
            log.warning("trial result could not be stored", exc_info=True)


def read_bounded(path: Path) -> bytes:
    """Reads a file that was written by untrusted code, such as a replica. Raises `OSError`."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    with os.fdopen(descriptor, "rb") as file:
        return file.read(_MOST_BYTES) or b""


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
