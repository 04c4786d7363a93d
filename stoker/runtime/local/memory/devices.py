"""GPUs of the machine as reported by their driver, and the GPU needs of a replica.

This module does not import torch. The gateway runs the driver's own program at the start. If that
finds devices, the gateway runs it again every few seconds.
"""

import csv
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from stoker.base.config import MIB
from stoker.base.driver_program import DriverProgram
from stoker.models.engines.record import MAX_DEVICES
from stoker.runtime.amounts import in_words
from stoker.runtime.local.memory.mig import MigInstance, read_instances
from stoker.runtime.observed import MIG

_DEVICES = (
    "--query-gpu=uuid,name,memory.total,memory.used,driver_version,mig.mode.current",
    "--format=csv,noheader,nounits",
)
_PROCESSES = ("--query-compute-apps=gpu_uuid,pid,used_memory", "--format=csv,noheader,nounits")
_MIG_COLUMN = 5
_HALF_BYTES = 2
"""Bytes of a number in half precision."""
_ANSWER_S = 10.0
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
    used_bytes: int | None = None
    """Bytes in use by all processes. None if the driver does not report them."""
    driver: str = ""
    """Version of the driver."""

    @property
    def is_part(self) -> bool:
        """True for a MIG instance. A process can use only one."""
        return self.uuid.startswith(MIG)

    @property
    def kind(self) -> str:
        """Name for measurements that hold for all devices of one model and driver."""
        return f"{self.name} {self.driver}".strip()


ProcessBytes = Mapping[int, Mapping[str, int]]
"""Maps a process id to the bytes that it holds of each device, by UUID."""


class Devices(Protocol):
    @property
    def problem(self) -> str:
        """Reason that the driver does not answer, in words. Empty if it does, or if none exists."""
        ...

    def table(self) -> Sequence[Device]:
        """Returns the devices that the server may use now. Empty if none can be detected.

        Takes up to half a minute.
        """
        ...

    def processes(self) -> ProcessBytes:
        """Returns the processes that hold memory of the devices. In a container, the ids may be
        those of the host, or missing.
        """
        ...


class DriverDevices:
    """NVIDIA devices and their MIG instances, as reported by the driver's own program."""

    def __init__(self) -> None:
        self._program = DriverProgram()

    @property
    def problem(self) -> str:
        return self._program.problem

    def table(self) -> Sequence[Device]:
        answer = self._ask(_DEVICES)
        has_mig = _has_mig(answer)
        listing, report = (self._ask(("-L",)), self._ask(("-q", "-x"))) if has_mig else ("", "")
        instances = read_instances(listing, report)
        return read_table(answer, os.environ.get("CUDA_VISIBLE_DEVICES"), instances)

    def processes(self) -> ProcessBytes:
        held: dict[int, dict[str, int]] = {}
        for row in _rows(self._ask(_PROCESSES)):
            if len(row) == 3 and row[1].strip().isdecimal() and row[2].strip().isdecimal():
                held.setdefault(int(row[1]), {})[row[0]] = int(row[2]) * MIB
        return held

    def _ask(self, arguments: Sequence[str]) -> str:
        return self._program.run(arguments, _ANSWER_S) or ""


def read_table(
    answer: str,
    visible: str | None,
    instances: Mapping[str, Sequence[MigInstance]] | None = None,
) -> Sequence[Device]:
    """Parses the output of the driver's program: lines of UUID, name, MiB in total and in use,
    driver version and MIG mode. The last three may be missing.

    Args:
        visible: CUDA_VISIBLE_DEVICES of the server: the numbers or UUIDs of the devices that it may
            use, as CUDA reads it. A GPU with MIG instances stands for all of them. None means all.
        instances: the MIG instances of each GPU, by UUID.
    """
    valid_rows = [row for row in _rows(answer) if _is_good(row)]
    groups = [_devices_of(row, (instances or {}).get(row[0], ())) for row in valid_rows]
    found = (
        [device for group in groups for device in group]
        if visible is None
        else _named(valid_rows, groups, visible)
    )
    return [replace(device, index=index) for index, device in enumerate(found[:MAX_DEVICES])]


def _rows(answer: str) -> Iterable[list[str]]:
    return csv.reader(answer.splitlines(), skipinitialspace=True)


def _has_mig(answer: str) -> bool:
    return any(
        len(row) > _MIG_COLUMN and row[_MIG_COLUMN].strip() == "Enabled" for row in _rows(answer)
    )


def _is_good(row: Sequence[str]) -> bool:
    return len(row) >= 3 and row[0].startswith("GPU-") and row[2].strip().isdecimal()


def _devices_of(row: Sequence[str], instances: Sequence[MigInstance]) -> list[Device]:
    """Returns the devices of one GPU: itself, or its MIG instances if it has that mode."""
    uuid, name, total, used, driver, mode = (*row, "", "", "")[: _MIG_COLUMN + 1]
    name, driver = name.strip()[:80], driver.strip()[:20]
    if mode.strip() == "Enabled":
        return [
            Device(
                index=0,
                uuid=instance.uuid,
                name=f"{name} MIG {instance.profile}",
                total_bytes=instance.total_bytes,
                used_bytes=instance.used_bytes,
                driver=driver,
            )
            for instance in instances
        ]
    return [
        Device(
            index=0,
            uuid=uuid,
            name=name,
            total_bytes=int(total) * MIB,
            used_bytes=int(used) * MIB if used.strip().isdecimal() else None,
            driver=driver,
        )
    ]


def _named(rows: Sequence[list[str]], groups: Sequence[list[Device]], visible: str) -> list[Device]:
    """Returns the devices in the order of `visible`. CUDA ignores all entries after a missing
    device.
    """
    named: list[Device] = []
    for name in (entry.strip() for entry in visible.split(",")):
        if name.isdecimal():
            group = groups[int(name)] if len(name) < 3 and int(name) < len(groups) else []
        else:
            whole = [
                group
                for row, group in zip(rows, groups, strict=True)
                if name and row[0].startswith(name)
            ]
            parts = [
                [device]
                for group in groups
                for device in group
                if name.startswith(MIG) and device.uuid.startswith(name)
            ]
            begins = [*whole, *parts]
            group = begins[0] if len(begins) == 1 else []
        if not group or any(device in named for device in group):
            break
        named += group
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
    sizes: Mapping[int, int] = field(default_factory=dict[int, int])
    """Bytes of each acceptable device, by its index. Empty means any device."""
    index: int | None = None
    """Index of the only acceptable device. None means any."""
    is_optional: bool = False
    """True if the replica runs on the CPU when it can never fit on a device."""
    half_size: int = 0
    """Bytes that it would need in half precision. 0 if unknown, or if it is half precision."""
    overhead: int = 0
    """Bytes that any model needs in addition to its weights."""
    takes_prepared: bool = False
    """True if a prepared worker can become the replica."""
    may_use_cpu: bool = False
    """True if the deployment requires a device, but could run on the CPU."""
    weights: int = 0
    """Bytes of the model's weights on all its devices together. 0 if unknown."""
    small_size: int = 0
    """Bytes that it would need with weights of 4 bits on vLLM. 0 if that is not possible."""
    spread_by: str = ""
    """Settings that spread the model over several devices, in words. Empty if that is not
    possible.
    """

    def of(self, device: Device, budget: int) -> int:
        """Returns the needed bytes of a device. All replicas together may use `budget` bytes of
        it.
        """
        if self.sizes:
            return max(1, self.sizes.get(device.index, 0))
        if self.share is not None:
            return max(1, min(budget, int(self.share * device.total_bytes)))
        return max(1, self.size)

    def lacks(self, size: int) -> bool:
        """Returns True if `size` bytes of each device cannot hold the weights."""
        return self.weights > size * self.count

    def advice(self, rooms: Sequence[int]) -> str:
        """Describes settings with which the model would fit.

        Args:
            rooms: available bytes of each device.
        """
        sentences = [
            self._in_half(max(rooms)),
            self._spread(rooms),
            self._small(max(rooms)),
            "Or set 'device' to 'cpu', where it has room." if self.may_use_cpu else "",
        ]
        return " ".join(filter(None, sentences))

    def _in_half(self, budget: int) -> str:
        if 0 < self.half_size <= budget:
            return (
                f"In half precision it needs about {in_words(self.half_size)} and fits: set "
                "'dtype' to 'bfloat16'."
            )
        room = budget - self.overhead
        if self.share is not None or room <= 0 or not self.overhead:
            return ""
        return (
            f"Models with weights of up to {in_words(room)} fit, which are "
            f"{room / _HALF_BYTES / 1e9:.1f} billion parameters in half precision."
        )

    def _spread(self, rooms: Sequence[int]) -> str:
        """Returns how many devices would hold the model, in words. Empty if too few exist."""
        if not self.spread_by or not self.weights:
            return ""
        for count, room in enumerate(sorted(rooms, reverse=True), start=1):
            if count > self.count and (room - self.overhead) * count >= self.weights:
                return f"Spread over {count} GPUs it fits: set {self.spread_by} to {count}."
        return ""

    def _small(self, budget: int) -> str:
        if not 0 < self.small_size <= budget:
            return ""
        return (
            f"With weights of 4 bits (AWQ or GPTQ, on vLLM) it needs about "
            f"{in_words(self.small_size)} and fits."
        )


def visible(devices: Iterable[Device]) -> str:
    """Returns the CUDA_VISIBLE_DEVICES of a replica that has these devices."""
    return ",".join(device.uuid for device in devices)
