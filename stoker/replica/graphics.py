"""Restricts the graphics devices that a replica sees and measures the memory that it holds
there.
"""

import os
import sys
from typing import Any

from stoker.wire.protocol import ReplicaSpec


def restrict(spec: ReplicaSpec) -> None:
    """Makes only the claimed devices visible to CUDA.

    CUDA reads the variable on first use, which no process makes before it is forked.
    """
    if spec.visible_devices is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = spec.visible_devices


def held(spec: ReplicaSpec) -> int | None:
    """Returns the bytes that torch reserves on the device with the most, including its cache.

    None if unknown: no device was claimed, or an engine other than torch uses the device.
    """
    if not spec.visible_devices or spec.environment:
        return None
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return None
    if torch.version.cuda is None:
        # With a build for CPUs, `auto` means the CPU.
        return 0
    if not torch.cuda.is_initialized():
        return None
    places = range(torch.cuda.device_count())
    return max((int(torch.cuda.memory_reserved(place)) for place in places), default=0)
