"""Which graphics devices a replica sees, and what it holds of them."""

import os
import sys
from typing import Any

from stoker.wire.protocol import ReplicaSpec


def restrict(spec: ReplicaSpec) -> None:
    """Have CUDA see the devices that were claimed, and no others.

    CUDA reads it when it is first used, which no process does before it is forked.
    """
    if spec.visible_devices is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = spec.visible_devices


def held(spec: ReplicaSpec) -> int | None:
    """What torch holds of the device that it has most of, bytes, with what it keeps for later.

    None where nobody knows: no device was claimed, or an engine has it by other means than torch.
    """
    if not spec.visible_devices or spec.environment:
        return None
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return None
    if torch.version.cuda is None:
        # A build for CPUs, which is what `auto` then means.
        return 0
    if not torch.cuda.is_initialized():
        return None
    places = range(torch.cuda.device_count())
    return max((int(torch.cuda.memory_reserved(place)) for place in places), default=0)
