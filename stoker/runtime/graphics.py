"""Derives the GPU requirements of a specification from its own fields."""

from dataclasses import dataclass

from stoker.models.engines.catalogue import ENGINES
from stoker.models.engines.record import AUTO, MAX_DEVICES
from stoker.models.tasks.registry import SERVED, engines
from stoker.runtime.specification import DeploymentSpec


@dataclass(frozen=True, kw_only=True)
class Graphics:
    """GPU requirements of one replica."""

    count: int = 1
    """Number of devices that the replica is spread over."""
    index: int | None = None
    """Index of the only acceptable device of a machine. None means any device."""
    is_optional: bool = False
    """True if the replica can run on the CPU without a device."""


def graphics_of(spec: DeploymentSpec) -> Graphics | None:
    """Returns the GPU requirements of a replica. None means that it always runs on the CPU."""
    if not _may_use_gpu(spec):
        return None
    record = ENGINES.get(spec.engine)
    count = spec.config.get(record.devices_option) if record else None
    several = count if isinstance(count, int) and 1 < count <= MAX_DEVICES else 1
    _, _, index = spec.device.partition(":")
    return Graphics(
        count=several,
        index=int(index) if index and several == 1 else None,
        is_optional=spec.device == AUTO,
    )


def needs_device(spec: DeploymentSpec) -> bool:
    """Returns True if the deployment cannot run on a machine without a device."""
    graphics = graphics_of(spec)
    return graphics is not None and not graphics.is_optional


def _may_use_gpu(spec: DeploymentSpec) -> bool:
    """Returns True if a replica runs on a GPU when the machine has one."""
    if spec.device == "cpu" or spec.pipeline not in SERVED:
        return False
    kind = SERVED[spec.pipeline].kind
    names = engines(spec.pipeline) if spec.engine == AUTO else [spec.engine]
    records = [ENGINES[name] for name in names if name in ENGINES]
    return any(
        "cuda" in record.devices and spec.dtype in (AUTO, *record.serves.get(kind, ()))
        for record in records
    )
