"""What was found of converted models when they were run as this machine runs them.

A verdict holds for the processor, the number of threads and the precision that it was found with: a
data folder that is moved to another machine, or a server with other settings, begins anew.
"""

import hashlib
import logging
import os
from pathlib import Path

import msgspec

from stoker.runtime.local.processes.machine import processor
from stoker.wire.protocol import Execution, Precision, TrialVerdict

log = logging.getLogger(__name__)

_MOST_BYTES = 256 << 10
"""Of a verdict, which is a page long. Parsing it holds the event loop."""

_decode = msgspec.json.Decoder(TrialVerdict).decode


class Trials:
    """They lie in the folder of the conversion, and go with it."""

    def __init__(self, threads: int) -> None:
        # As many as there are cores, whatever is asked for: one core is one thread.
        cores = len(os.sched_getaffinity(0))
        self._place = _digest(f"{processor()}\n{threads} threads of {cores}")

    def execution(self, folder: Path, precision: Precision) -> Execution:
        cache = folder / f"compiled-{self._place}"
        return Execution(str(folder), precision, str(cache))

    def path(self, execution: Execution) -> Path:
        """Where the verdict of an execution is kept."""
        return Path(execution.folder) / f"trial-{execution.precision}-{self._place}.json"

    def verdict(self, execution: Execution) -> TrialVerdict | None:
        """None where it was not tried, or what is there cannot be read."""
        try:
            return _decode(read_bounded(self.path(execution)))
        except (OSError, msgspec.DecodeError):
            return None

    def fail(self, execution: Execution, reason: str) -> None:
        """Quarantine an execution, whatever its verdict was."""
        path = self.path(execution)
        part = path.with_suffix(".part")
        try:
            part.write_bytes(msgspec.json.encode(TrialVerdict(passed=False, reason=reason)))
            part.replace(path)
        except OSError:
            # The folder went with the last deployment of the model.
            log.warning("trial result could not be stored", exc_info=True)


def read_bounded(path: Path) -> bytes:
    """What code of a replica's kind has written, of which nothing is expected. Raises `OSError`."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    with os.fdopen(descriptor, "rb") as file:
        return file.read(_MOST_BYTES) or b""


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
