"""The diffusers engine: pipelines that make images and video in many steps."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, cast

import torch

from stoker.models.diffusion.base import DiffusionStages
from stoker.models.engines.interface import Progress
from stoker.models.engines.precision import HALF, dtype_of, stored_dtype
from stoker.models.engines.record import AUTO
from stoker.models.engines.torch import device_of
from stoker.models.stages.base import Sample, Stages
from stoker.models.stages.watch import UNWATCHED, Watch
from stoker.wire.protocol import Execution, ReplicaSpec

MODEL_INDEX = "model_index.json"
_AUTOENCODERS_IN_SINGLE = frozenset({"AutoencoderKLWan"})
"""Autoencoders that lose visible detail in half precision. Their pipelines convert the latents to
the autoencoder's dtype.
"""
_OF_VIDEO = 5
"""Number of dimensions of the weights of 3D convolutions, which video models have."""


class DiffusersEngine:
    name = "diffusers"

    def __init__(self, device: str, dtype: str, threads: int) -> None:
        self.threads = threads
        self.device = device_of(device)
        self.dtype = dtype_of(dtype, self.device)
        self._wanted = dtype

    @classmethod
    def of(cls, spec: ReplicaSpec) -> Self:
        """Returns the engine for a replica's specification."""
        return cls(spec.device, spec.dtype, spec.threads)

    def load(self, folder: Path, stages: Stages, progress: Progress) -> Any:
        progress(0.1, "reading weights")
        self.stages = cast("DiffusionStages", stages)
        is_on_gpu = self.device.type == "cuda"
        dtypes = {"default": self.dtype}
        if is_on_gpu and self._wanted == AUTO:
            self.dtype = half_precision(folder, has_bfloat16=_has_bfloat16())
            dtypes = dtypes_of_parts(folder, self.dtype)
        self.pipe = _pipeline_class(folder, self.stages).from_pretrained(
            str(folder), local_files_only=True, use_safetensors=True, dtype=dtypes
        )
        self.pipe.set_progress_bar_config(disable=True)
        self.pipe.to(self.device)
        if is_on_gpu:
            use_channels_last(self.pipe)
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


def half_precision(folder: Path, *, has_bfloat16: bool) -> torch.dtype:
    """Returns the default dtype of a pipeline on a GPU: the stored dtype of its denoiser if that is
    half precision, otherwise the dtype in which such models are trained.

    Args:
        has_bfloat16: True if the GPU computes in bfloat16 and does not emulate it.
    """
    usual = {"transformer": torch.bfloat16, "unet": torch.float16}
    name = next((part for part in usual if (folder / part).is_dir()), "unet")
    stored = stored_dtype(folder / name)
    dtype = stored if stored in HALF else usual[name]
    return dtype if has_bfloat16 else torch.float16


def dtypes_of_parts(folder: Path, dtype: torch.dtype) -> dict[str, torch.dtype]:
    """Maps components of a pipeline to their dtypes. `default` applies to all other components.

    Autoencoders with `force_upcast` are not listed, because diffusers itself runs them in float32.
    """
    _, vae = _index(folder).get("vae") or (None, None)
    in_single = {"vae": torch.float32} if vae in _AUTOENCODERS_IN_SINGLE else {}
    return {"default": dtype, **in_single}


def use_channels_last(pipe: Any) -> None:
    """Stores the weights of a pipeline's convolutions in the memory format that a GPU's tensor
    cores read. Otherwise each convolution converts its input and output.
    """
    for name in ("unet", "vae"):
        part = getattr(pipe, name, None)
        # The format exists for 2D convolutions only.
        if part is not None and all(weight.dim() < _OF_VIDEO for weight in part.parameters()):
            part.to(memory_format=torch.channels_last)


def _has_bfloat16() -> bool:
    return torch.cuda.is_bf16_supported(including_emulation=False)


def _index(folder: Path) -> dict[str, Any]:
    return json.loads((folder / MODEL_INDEX).read_bytes())


def _pipeline_class(folder: Path, stages: DiffusionStages) -> Any:
    """Returns the pipeline's class. The name comes from an artifact, so it must be among the served
    ones.
    """
    import diffusers

    name = _index(folder).get("_class_name")
    if name not in stages.classes:
        raise ValueError(f"{MODEL_INDEX} names a pipeline that is not served for this task")
    library: Any = diffusers
    return getattr(library, name)
