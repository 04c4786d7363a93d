"""Limits the files that processes with a model can access."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from stoker.sandbox import (
    Standing,
    Walls,
    confine,
    gpu_places,
    limit_file_size,
    machine_bytes,
    places,
)
from stoker.sandbox.written import most_written
from stoker.wire.conversions import Conversion, ConversionTrial
from stoker.wire.protocol import Cell, ReplicaSpec, WorkerSpec


def around_replica(spec: ReplicaSpec) -> Standing:
    environment = spec.environment
    own_python = Path(environment.python) if environment else None
    return _confined(
        spec.cell,
        spec.model_dir,
        reads=[path for path in (spec.conversions, spec.adapters) if path],
        gpu=may_use_gpu(spec),
        openings=spec.openings if may_use_gpu(spec) else (),
        **(
            {
                # The cache contains code that other processes run.
                "runs": [*_environment(own_python), Path(environment.cache_dir)],
                "writes": [Path(path) for path in [environment.compiled_dir] if path],
                "has_child": True,
            }
            if environment and own_python
            else {}
        ),
    )


def around_worker(spec: WorkerSpec) -> Standing:
    """Sets up a worker's walls. Its model is not known yet, so its folder is empty and the limit of
    file sizes is high.
    """
    # Before the walls hide the devices' folder.
    has_gpus = bool(gpu_places.gpus())
    return confine(
        Walls(
            folder=Path(spec.cell.folder),
            kept_back=Path(spec.cell.kept_back),
            user=spec.cell.user,
            reads=[Path(spec.models)],
            gpu=spec.device != "cpu" and has_gpus,
            file_bytes=machine_bytes(),
            openings=spec.openings,
        )
    )


def limit_files(spec: ReplicaSpec) -> None:
    """Limits the files of a worker that becomes a replica, as `around_replica` does."""
    if not may_use_gpu(spec):
        limit_file_size(most_written(Path(spec.model_dir)))


def may_use_gpu(spec: ReplicaSpec) -> bool:
    return spec.device != "cpu" and bool(gpu_places.gpus())


def around_conversion(job: Conversion) -> Standing:
    folder = Path(job.folder)
    folder.mkdir(parents=True, exist_ok=True)
    return _confined(job.cell, job.model_dir, writes=[folder])


def around_trial(job: ConversionTrial) -> Standing:
    return _confined(job.cell, job.model_dir, writes=[Path(job.execution.folder)])


def _confined(cell: Cell, model_dir: str, *, reads: Iterable[str] = (), **others: Any) -> Standing:
    model = Path(model_dir)
    return confine(
        Walls(
            folder=Path(cell.folder),
            kept_back=Path(cell.kept_back),
            user=cell.user,
            reads=[model, *map(Path, reads)],
            file_bytes=most_written(model),
            **others,
        )
    )


def _environment(python: Path) -> list[Path]:
    """Returns the folders of an interpreter's environment and of the Python that it was made
    from.
    """
    real = python.resolve()
    return [*places.inside(python.parent.parent), *places.inside(real.parent.parent)]
