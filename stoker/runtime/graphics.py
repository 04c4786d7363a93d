"""What a specification asks of graphics devices, as far as it says so by itself."""

from dataclasses import dataclass

from stoker.models.engines.catalogue import ENGINES
from stoker.models.engines.record import AUTO
from stoker.models.tasks.registry import SERVED, engines
from stoker.runtime.specification import DeploymentSpec

MOST_DEVICES = 64
"""Of one machine."""


@dataclass(frozen=True, kw_only=True)
class Graphics:
    """What one replica is to have."""

    count: int = 1
    """Over so many devices it is spread."""
    index: int | None = None
    """The only device of a machine that will do; None: any."""
    is_optional: bool = False
    """Without, it runs on the CPU."""


def graphics_of(spec: DeploymentSpec) -> Graphics | None:
    """None: it runs on the CPU, whatever there is."""
    if not _may_use_gpu(spec):
        return None
    record = ENGINES.get(spec.engine)
    count = spec.config.get(record.devices_option) if record else None
    several = count if isinstance(count, int) and 1 < count <= MOST_DEVICES else 1
    _, _, index = spec.device.partition(":")
    return Graphics(
        count=several,
        index=int(index) if index and several == 1 else None,
        is_optional=spec.device == AUTO,
    )


def needs_device(spec: DeploymentSpec) -> bool:
    """Whether it can run on no machine without."""
    graphics = graphics_of(spec)
    return graphics is not None and not graphics.is_optional


def _may_use_gpu(spec: DeploymentSpec) -> bool:
    """Whether a replica comes to run on a GPU where there is one."""
    if spec.device == "cpu" or spec.pipeline not in SERVED:
        return False
    kind = SERVED[spec.pipeline].kind
    names = engines(spec.pipeline) if spec.engine == AUTO else [spec.engine]
    records = [ENGINES[name] for name in names if name in ENGINES]
    return any(
        "cuda" in one.devices and spec.dtype in (AUTO, *one.serves.get(kind, ())) for one in records
    )
