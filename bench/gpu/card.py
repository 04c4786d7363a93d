"""The measured GPU as its driver's program reports it: name, driver, memory, and load over time."""

import contextlib
import os
import shutil
import statistics
import subprocess
import threading
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from bench.processes import child
from stoker.sandbox.gpu_places import PROGRAM

DEVICE = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0] or "0"
"""Number or UUID of the only GPU that is used."""
ANSWER_S = 20
SAMPLE_MS = 200
SETTLE_S = 0.3
"""Seconds at the start of a load that are left out of its samples."""
_FACTS = ("name", "driver_version", "memory.total", "uuid", "mig.mode.current")
_SAMPLE = ("utilization.gpu", "memory.used", "power.draw")
_FORMAT = "--format=csv,noheader,nounits"


@dataclass(frozen=True)
class Sample:
    at: float
    busy_percent: float
    used_mib: float
    watts: float


class Card:
    """Samples the GPU in the background. Without the driver's program it has no samples."""

    def __init__(self) -> None:
        self._program = shutil.which(PROGRAM)
        self._stack = contextlib.ExitStack()
        self._samples: list[Sample] = []

    def __enter__(self) -> Self:
        if self._program:
            command = [
                *(self._program, f"--id={DEVICE}", f"--query-gpu={','.join(_SAMPLE)}"),
                *(_FORMAT, f"--loop-ms={SAMPLE_MS}"),
            ]
            process = self._stack.enter_context(
                child(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    text=True,
                )
            )
            threading.Thread(target=self._read, args=(process,), daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def facts(self) -> dict[str, str]:
        """Returns the card's name, driver, memory, UUID and MIG mode. Empty without a driver."""
        return dict(zip(_FACTS, self._query(*_FACTS), strict=False))

    def used_bytes(self) -> int | None:
        """Returns the memory in use on the card. None without a driver."""
        cells = self._query("memory.used")
        return int(float(cells[0])) << 20 if cells else None

    def load(self, since: float, until: float | None = None) -> dict[str, Any]:
        """Returns means and peaks between two moments of `time.monotonic`. Empty if unknown."""
        last = time.monotonic() if until is None else until
        samples = [sample for sample in self._samples if since + SETTLE_S <= sample.at <= last]
        if not samples:
            return {}
        return {
            "busy_percent": round(statistics.mean(sample.busy_percent for sample in samples), 1),
            "peak_used_mib": max(sample.used_mib for sample in samples),
            "watts": round(statistics.mean(sample.watts for sample in samples)),
        }

    def _query(self, *fields: str) -> list[str]:
        """Returns fields of the card. Empty if the program is missing or does not answer."""
        if not self._program:
            return []
        try:
            done = subprocess.run(
                [self._program, f"--id={DEVICE}", f"--query-gpu={','.join(fields)}", _FORMAT],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=ANSWER_S,
                check=True,
            )
        except (OSError, subprocess.SubprocessError):
            return []
        return [cell.strip() for cell in done.stdout.strip().split(",")]

    def _read(self, process: "subprocess.Popen[str]") -> None:
        for line in process.stdout or ():
            try:
                busy, used, watts = (float(cell) for cell in line.split(","))
            except ValueError:
                continue
            self._samples.append(Sample(time.monotonic(), busy, used, watts))
