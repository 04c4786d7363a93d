"""Parses the MIG instances of GPUs: parts of a GPU with memory of their own.

`nvidia-smi --query-gpu` lists only whole GPUs. The names and UUIDs of the instances are in
`nvidia-smi -L`, and their memory is in `nvidia-smi -q -x`. The second one lacks the UUIDs on some
drivers. Both number the instances of a GPU in the same way.
"""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from xml.etree import ElementTree

from stoker.base.config import MIB

_GPU = re.compile(r"GPU +\d+: .*\(UUID: (GPU-[^)\s]+)\)")
_INSTANCE = re.compile(r"\s+MIG +(\S+) +Device +(\d+): +\(UUID: (MIG-[^)\s]+)\)")
_PROFILE = re.compile(r"(\d+)gb\b")
_GIB = 1 << 30


@dataclass(frozen=True, kw_only=True)
class MigInstance:
    """One MIG device, as CUDA sees it."""

    uuid: str
    profile: str
    """Name such as `3g.40gb`."""
    total_bytes: int
    used_bytes: int | None


@dataclass(frozen=True)
class _Memory:
    total_bytes: int
    used_bytes: int | None


def read_instances(listing: str, report: str) -> Mapping[str, list[MigInstance]]:
    """Maps the UUID of each GPU with MIG instances to them.

    Compute instances of one GPU instance share its memory. Each counts with an equal part.

    Args:
        listing: output of `nvidia-smi -L`.
        report: output of `nvidia-smi -q -x`. If it lacks an instance, the profile's name tells the
            memory.
    """
    memory = _memory(report)
    instances: dict[str, list[MigInstance]] = {}
    gpu = ""
    for line in listing.splitlines():
        if match := _GPU.match(line):
            gpu = match[1]
        elif gpu and (match := _INSTANCE.match(line)):
            profile, number, uuid = match.groups()
            known = memory.get((gpu, int(number))) or _Memory(_of_profile(profile), None)
            if known.total_bytes:
                instances.setdefault(gpu, []).append(
                    MigInstance(
                        uuid=uuid,
                        profile=profile,
                        total_bytes=known.total_bytes,
                        used_bytes=known.used_bytes,
                    )
                )
    return instances


def _of_profile(profile: str) -> int:
    """Returns the memory in a profile's name. 0 if it names none."""
    match = _PROFILE.search(profile)
    return int(match[1]) * _GIB if match else 0


def _memory(report: str) -> Mapping[tuple[str, int], _Memory]:
    """Maps a GPU's UUID and the number of an instance to the instance's memory."""
    try:
        root = ElementTree.fromstring(report)  # noqa: S314 - written by the driver's own program
    except ElementTree.ParseError:
        return {}
    memory: dict[tuple[str, int], _Memory] = {}
    for gpu in root.iter("gpu"):
        devices = list(gpu.iter("mig_device"))
        sharing = Counter(_text(device, "gpu_instance_id") for device in devices)
        for device in devices:
            number, total = _text(device, "index"), _mib(device, "total")
            if not number.isdecimal() or total is None:
                continue
            used, parts = _mib(device, "used"), sharing[_text(device, "gpu_instance_id")]
            memory[_text(gpu, "uuid"), int(number)] = _Memory(
                total // parts, None if used is None else used // parts
            )
    return memory


def _mib(device: ElementTree.Element, name: str) -> int | None:
    """Returns a field of an instance's memory in bytes. None if the driver does not know it."""
    number, _, unit = _text(device, f"fb_memory_usage/{name}").partition(" ")
    return int(number) * MIB if number.isdecimal() and unit == "MiB" else None


def _text(element: ElementTree.Element, path: str) -> str:
    return (element.findtext(path) or "").strip()
