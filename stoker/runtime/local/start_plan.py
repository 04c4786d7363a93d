"""Decisions about the start of a replica."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stoker.base.config import MIB
from stoker.models.engines import catalogue
from stoker.models.engines.record import AUTO
from stoker.models.tasks.registry import GENERATING, SERVED, engines
from stoker.runtime.interface import LoadError
from stoker.runtime.local.processes.machine import weights
from stoker.runtime.specification import DeploymentSpec
from stoker.sandbox import Opening
from stoker.wire.protocol import Execution, OwnEnvironment

BOTH_BYTES = 512 * MIB
"""Maximum bytes of a language model's weights that may be in memory twice during the start. They
are held as torch reads them, which takes no time, and compiled, which takes a second or two.
"""


@dataclass(frozen=True, kw_only=True)
class StartPlan:
    """Decisions about one start."""

    replica_id: str
    spec: DeploymentSpec
    started: DeploymentSpec
    """Specification with the engine that was chosen for its device."""
    folder: Path
    device: str
    visible_devices: str | None
    openings: Sequence[Opening]
    environment: OwnEnvironment | None
    conversion: Path
    adapters: Path | None
    execution: Execution | None

    @property
    def is_on_device(self) -> bool:
        return bool(self.visible_devices)

    @property
    def sharing_key(self) -> str:
        return f"{self.spec.pipeline}-{self.device}-{self.spec.dtype}"

    @property
    def is_plain(self) -> bool:
        """True if a prepared worker can become the replica. The claim was made before, and an
        engine may have been installed since.
        """
        return not (self.execution or self.environment or self.adapters)


def begins_converted(spec: DeploymentSpec, folder: Path) -> bool:
    """Returns True if a replica starts with the model's conversion instead of answering with torch
    while that is compiled.
    """
    if spec.pipeline not in GENERATING:
        return False
    files = weights(folder)
    # torch would have to unpack the weights.
    is_packed = any(path.suffix == ".gguf" for path in files)
    return is_packed or sum(path.stat().st_size for path in files) > BOTH_BYTES


def check_served(spec: DeploymentSpec) -> None:
    """Raises `LoadError` if the package that provided the engine or the pipeline was removed."""
    if spec.pipeline not in SERVED:
        raise LoadError(
            f"This server no longer supports the pipeline '{spec.pipeline}'.", lasting=True
        )
    if spec.engine not in (AUTO, *engines(spec.pipeline)):
        raise LoadError(catalogue.missing(spec.engine, spec.pipeline), lasting=True)
    dtypes = catalogue.served_dtypes(spec.pipeline, SERVED[spec.pipeline].kind)
    if spec.dtype not in (AUTO, *dtypes):
        raise LoadError(
            f"No engine on this server computes in '{spec.dtype}'. Set 'dtype' to 'auto'.",
            lasting=True,
        )
