"""The diffusers engine: pipelines that make images and video in many steps."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, cast

import torch

from stoker.models.diffusion.base import DiffusionStages
from stoker.models.engines.interface import Progress
from stoker.models.engines.precision import dtype_of
from stoker.models.engines.torch import device_of
from stoker.models.stages.base import Sample, Stages
from stoker.models.stages.watch import UNWATCHED, Watch
from stoker.wire.protocol import Execution, ReplicaSpec

MODEL_INDEX = "model_index.json"


class DiffusersEngine:
    name = "diffusers"

    def __init__(self, device: str, dtype: str, threads: int) -> None:
        self.threads = threads
        self.device = device_of(device)
        self.dtype = dtype_of(dtype, self.device)

    @classmethod
    def of(cls, spec: ReplicaSpec) -> Self:
        """Returns the engine for a replica's specification."""
        return cls(spec.device, spec.dtype, spec.threads)

    def load(self, folder: Path, stages: Stages, progress: Progress) -> Any:
        progress(0.1, "reading weights")
        self.stages = cast("DiffusionStages", stages)
        self.pipe = _pipeline_class(folder, self.stages).from_pretrained(
            str(folder), local_files_only=True, use_safetensors=True, dtype=self.dtype
        )
        self.pipe.set_progress_bar_config(disable=True)
        self.pipe.to(self.device)
        return self.pipe

    @property
    def convertible(self) -> bool:
        return False

    def prepare(self, execution: Execution) -> Callable[[], None]:
        """Does nothing: the engine has no better form than the loaded model."""
        return lambda: None

    def enter_thread(self) -> None:
        # OpenMP keeps this number per thread that opens parallel regions.
        torch.set_num_threads(self.threads)

    def forward(
        self, samples: Sequence[Sample], watch: Watch = UNWATCHED
    ) -> list[Mapping[str, Any]]:
        outputs = self.stages.draw(self.pipe, samples, watch)
        return [
            {**sample.extras, **output} for sample, output in zip(samples, outputs, strict=True)
        ]


def _pipeline_class(folder: Path, stages: DiffusionStages) -> Any:
    """Returns the pipeline's class. The name comes from an artifact, so it must be among the served
    ones.
    """
    import diffusers

    name = json.loads((folder / MODEL_INDEX).read_bytes()).get("_class_name")
    if name not in stages.classes:
        raise ValueError(f"{MODEL_INDEX} names a pipeline that is not served for this task")
    library: Any = diffusers
    return getattr(library, name)
