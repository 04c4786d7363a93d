"""Engines and precisions that are worth a trial for a deployment's model, from the catalogue's
records.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, get_args

from stoker.base.config import Settings
from stoker.base.errors import InvalidRequestError
from stoker.models.engines import environments
from stoker.models.engines.catalogue import ENGINES
from stoker.models.engines.record import AUTO, TF32, EngineRecord
from stoker.models.tasks.registry import SERVED
from stoker.models.tasks.registry import engines as serving
from stoker.registry.deployments import engines
from stoker.runtime.observed import MachineStats
from stoker.store.tables.deployments import Deployment
from stoker.wire.conversions import WeightFormat

REFERENCE = "float32"
"""Dtype with the answers that the other candidates are compared with."""
_ON_CPU_IF_REQUESTED = ("float16", TF32)
"""Dtypes that are tried only on request if the deployment runs on a CPU: processors emulate
float16, and have no tf32.
"""
_WEIGHT_FORMAT = "weight_format"


@dataclass(frozen=True)
class TrialCandidate:
    engine: str
    dtype: str
    weight_format: str | None = None

    def applied(self, row: Deployment) -> dict[str, Any]:
        """Returns the fields of a deployment that runs this way."""
        config = {name: value for name, value in row.config.items() if name != _WEIGHT_FORMAT}
        if self.weight_format:
            config[_WEIGHT_FORMAT] = self.weight_format
        return {"engine": self.engine, "dtype": self.dtype, "config": config}


def is_on_gpu(device: str, machines: Iterable[MachineStats]) -> bool:
    """Returns True if a deployment with this `device` runs on a GPU of these machines."""
    if device == AUTO:
        return any(machine.devices for machine in machines)
    return device.startswith("cuda")


def candidates(
    settings: Settings,
    row: Deployment,
    *,
    on_gpu: bool,
    only_engines: Collection[str] | None,
    only_dtypes: Collection[str] | None,
) -> list[TrialCandidate]:
    """Returns the candidates of a deployment. The reference for comparison comes first.

    Args:
        on_gpu: True if the deployment runs on a GPU: see `is_on_gpu`.

    Raises `InvalidRequestError` for an engine that does not serve the deployment's pipeline.
    """
    served = serving(row.pipeline)
    for index, name in enumerate(only_engines or ()):
        if name not in served:
            raise InvalidRequestError(
                f"The engine '{name}' does not serve '{row.pipeline}', which runs on "
                f"{' and '.join(served)}.",
                param=f"engines[{index}]",
            )
    wanted = [
        candidate
        for name in served
        for candidate in _of(settings, ENGINES[name], row)
        if _is_wanted(candidate, only_engines, only_dtypes, on_gpu=on_gpu)
    ]
    plain = [name for name in served if not ENGINES[name].converts and not _lacks(settings, name)]
    reference = TrialCandidate(plain[0], REFERENCE) if plain else None
    if reference is None:
        return wanted
    return [reference, *(candidate for candidate in wanted if candidate != reference)]


def _of(settings: Settings, record: EngineRecord, row: Deployment) -> Iterator[TrialCandidate]:
    if _lacks(settings, record.name):
        # Listed once, to report that the engine is unavailable.
        yield TrialCandidate(record.name, AUTO)
        return
    kind = SERVED[row.pipeline].kind
    for dtype in record.serves[kind]:
        yield TrialCandidate(record.name, dtype)
    options = record.options
    if options and kind in options.kinds and _WEIGHT_FORMAT in options.model.model_fields:
        for weight_format in get_args(WeightFormat):
            if not options.narrowed(_WEIGHT_FORMAT, weight_format, kind):
                yield TrialCandidate(record.name, AUTO, weight_format)


def _lacks(settings: Settings, name: str) -> bool:
    environment = ENGINES[name].environment
    return environment is not None and environments.installed(settings, name) is None


def _is_wanted(
    candidate: TrialCandidate,
    only_engines: Collection[str] | None,
    only_dtypes: Collection[str] | None,
    *,
    on_gpu: bool,
) -> bool:
    if only_engines is not None and candidate.engine not in only_engines:
        return False
    if only_dtypes is None:
        return on_gpu or candidate.dtype not in _ON_CPU_IF_REQUESTED
    return candidate.dtype in only_dtypes


def why_not(
    settings: Settings, row: Deployment, candidate: TrialCandidate, *, on_gpu: bool
) -> str | None:
    """Returns why the server cannot run a deployment this way, or None if it can be tried."""
    if candidate.dtype == TF32 and not on_gpu:
        return "Only GPUs compute in tf32, and this deployment runs on a CPU."
    changed = Deployment(pipeline=row.pipeline, device=row.device, **candidate.applied(row))
    try:
        engines.check(settings, changed)
    except InvalidRequestError as error:
        return error.message
    return None
