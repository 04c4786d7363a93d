"""The machine's graphics devices, as their driver names them, and what a replica wants of them.

Nothing here imports torch: the gateway asks the driver's own program, once at the start, and where
that has found devices, each minute whether they are still there.
"""

import csv
import logging
import os
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from stoker.base.config import MIB
from stoker.runtime.graphics import MOST_DEVICES

log = logging.getLogger(__name__)

_PROGRAM = "nvidia-smi"
_ASKS = ("--query-gpu=uuid,name,memory.total", "--format=csv,noheader,nounits")
_ANSWER_S = 20.0
"""A driver that wakes its devices up takes some seconds."""


@dataclass(frozen=True, kw_only=True)
class Device:
    index: int
    """As a deployment's `cuda:N` names it: its place among those that the server may use."""
    uuid: str
    """As CUDA_VISIBLE_DEVICES names it, which does not change with the others that are there."""
    name: str
    total_bytes: int


class Devices(Protocol):
    def table(self) -> Sequence[Device]:
        """Those that the server may use, as of now; none, also where nobody can tell.

        Takes up to half a minute.
        """
        ...


class DriverDevices:
    """NVIDIA's, by the program that comes with their driver.

    Its library is not asked within this process: a driver that hangs holds up a program alone.
    """

    def table(self) -> Sequence[Device]:
        program = shutil.which(_PROGRAM)
        if program is None:
            return ()
        try:
            answer = subprocess.run(  # noqa: S603 - the driver's own program, words of ours
                [program, *_ASKS],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_ANSWER_S,
                check=False,
            )
        except (OSError, subprocess.SubprocessError, UnicodeError):
            log.exception("GPU driver does not answer")
            return ()
        # Those that it could read, also where it has failed over one that is broken.
        return read_table(answer.stdout, os.environ.get("CUDA_VISIBLE_DEVICES"))


def read_table(answer: str, visible: str | None) -> Sequence[Device]:
    """What the driver's program has written: lines of UUID, name and MiB.

    Args:
        visible: CUDA_VISIBLE_DEVICES of the server: the numbers or UUIDs of those that it may use,
            as CUDA reads it; None: all.
    """
    found = [row for row in csv.reader(answer.splitlines(), skipinitialspace=True) if _is_good(row)]
    rows = found[:MOST_DEVICES] if visible is None else _named(found, visible)
    return [
        Device(index=index, uuid=uuid, name=name.strip()[:100], total_bytes=int(mib) * MIB)
        for index, (uuid, name, mib) in enumerate(rows)
    ]


def _is_good(row: Sequence[str]) -> bool:
    return len(row) == 3 and row[0].startswith("GPU-") and row[2].strip().isdecimal()


def _named(rows: Sequence[list[str]], visible: str) -> list[list[str]]:
    """In the order in which they are named; CUDA ignores what stands behind one that is not there,
    and parts of a device (MIG) are not counted."""
    named: list[list[str]] = []
    for name in (one.strip() for one in visible.split(",")):
        if name.isdecimal():
            row = rows[int(name)] if len(name) < 3 and int(name) < len(rows) else None
        else:
            begins = [row for row in rows if name and row[0].startswith(name)]
            row = begins[0] if len(begins) == 1 else None
        if row is None or row in named:
            break
        named.append(row)
    return named


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What a replica wants of the devices, beside the machine's memory."""

    size: int = 0
    """Bytes of each device, where `share` does not say it."""
    share: float | None = None
    """The part of a device's memory that its engine takes when it starts; None: as it needs."""
    count: int = 1
    """Over so many devices it is spread, and holds so much of each."""
    index: int | None = None
    """The only device that will do; None: any."""
    is_optional: bool = False
    """Where it can never fit, it runs on the CPU."""

    def of(self, device: Device, budget: int) -> int:
        """Bytes of a device of which all replicas together may take `budget`."""
        if self.share is not None:
            return max(1, min(budget, int(self.share * device.total_bytes)))
        return max(1, self.size)


def visible(devices: Iterable[Device]) -> str:
    """CUDA_VISIBLE_DEVICES of a replica that has these."""
    return ",".join(device.uuid for device in devices)
