"""GPUs of the machine as reported by their driver, and the GPU needs of a replica.

This module does not import torch. The gateway runs the driver's own program once at the start. If
that finds devices, the gateway checks them every minute.
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
from stoker.models.engines.record import MAX_DEVICES

log = logging.getLogger(__name__)

_PROGRAM = "nvidia-smi"
_ASKS = ("--query-gpu=uuid,name,memory.total", "--format=csv,noheader,nounits")
_ANSWER_S = 20.0
"""Timeout of the driver's program in seconds. A driver that wakes its devices needs some
seconds.
"""


@dataclass(frozen=True, kw_only=True)
class Device:
    index: int
    """Index in a deployment's `cuda:N`: the position among the devices that the server may use."""
    uuid: str
    """UUID as in CUDA_VISIBLE_DEVICES. It does not depend on the other devices."""
    name: str
    total_bytes: int


class Devices(Protocol):
    def table(self) -> Sequence[Device]:
        """Returns the devices that the server may use now. Empty if none can be detected.

        Takes up to half a minute.
        """
        ...


class DriverDevices:
    """NVIDIA devices, as reported by the driver's own program.

    The driver's library is not loaded into this process, because a driver that hangs then blocks
    only the program.
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
        # Use the devices that were read, even if the program failed on a broken one.
        return read_table(answer.stdout, os.environ.get("CUDA_VISIBLE_DEVICES"))


def read_table(answer: str, visible: str | None) -> Sequence[Device]:
    """Parses the output of the driver's program: lines of UUID, name and MiB.

    Args:
        visible: CUDA_VISIBLE_DEVICES of the server: the numbers or UUIDs of the devices that it may
            use, as CUDA reads it. None means all.
    """
    valid_rows = [
        row for row in csv.reader(answer.splitlines(), skipinitialspace=True) if _is_good(row)
    ]
    rows = valid_rows[:MAX_DEVICES] if visible is None else _named(valid_rows, visible)
    return [
        Device(index=index, uuid=uuid, name=name.strip()[:100], total_bytes=int(mib) * MIB)
        for index, (uuid, name, mib) in enumerate(rows)
    ]


def _is_good(row: Sequence[str]) -> bool:
    return len(row) == 3 and row[0].startswith("GPU-") and row[2].strip().isdecimal()


def _named(rows: Sequence[list[str]], visible: str) -> list[list[str]]:
    """Returns the rows in the order of `visible`. CUDA ignores all entries after a missing device.
    Parts of a device (MIG) are not counted.
    """
    named: list[list[str]] = []
    for name in (entry.strip() for entry in visible.split(",")):
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
class DeviceNeed:
    """GPU needs of one replica, in addition to the machine's memory."""

    size: int = 0
    """Bytes of each device if `share` is None."""
    share: float | None = None
    """Fraction of a device's memory that the engine allocates when it starts. None means as
    needed.
    """
    count: int = 1
    """Number of devices that the replica is spread over. It holds the same amount of each."""
    index: int | None = None
    """Index of the only acceptable device. None means any."""
    is_optional: bool = False
    """True if the replica runs on the CPU when it can never fit on a device."""

    def of(self, device: Device, budget: int) -> int:
        """Returns the needed bytes of a device. All replicas together may use `budget` bytes of
        it.
        """
        if self.share is not None:
            return max(1, min(budget, int(self.share * device.total_bytes)))
        return max(1, self.size)


def visible(devices: Iterable[Device]) -> str:
    """Returns the CUDA_VISIBLE_DEVICES of a replica that has these devices."""
    return ",".join(device.uuid for device in devices)
