"""The torch engine: any architecture that transformers supports. The reference for correctness."""

import contextlib
import logging
from collections.abc import Callable, Generator, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import torch
import transformers

from stoker.models.adapters.applying import Adapters
from stoker.models.engines import completeness
from stoker.models.engines.interface import Progress
from stoker.models.engines.layout import BatchLayout, PackedLayout
from stoker.models.engines.packed_layers import PackedLayers
from stoker.models.engines.packing import NAMES, TokenPacking
from stoker.models.engines.precision import dtype_of
from stoker.models.engines.record import AUTO
from stoker.models.engines.stateless import make_stateless
from stoker.models.stages.base import Sample, Stages
from stoker.models.stages.watch import UNWATCHED, Watch
from stoker.wire.protocol import Execution, ReplicaSpec

log = logging.getLogger(__name__)

PROBED_TOKENS = 8


class TorchEngine:
    name = "torch"
    adapters: Adapters | None = None
    layers: PackedLayers | None = None
    """Layers that may run on a packed row."""

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
        self.folder = folder
        self.stages = stages
        self.layout: BatchLayout = PackedLayout(stages, self.device)
        self.dtype = dtype_of(self._wanted, self.device, folder)
        self.model: Any = self.read()
        return self.model

    def read(self) -> Any:
        """Loads the model onto its device."""
        model = completeness.loaded(
            _model_class(self.stages, self.folder),
            str(self.folder),
            local_files_only=True,
            use_safetensors=True,
            dtype=self.dtype,
        )
        model = self.stages.part(model).to(self.device).eval()
        make_stateless(model)
        self.layers = PackedLayers.of(model)
        return model

    def widened(self) -> Any | None:
        """Returns the model in single precision if `auto` chose half precision and a probe fails in
        it.

        None if the model stays as it is. A CPU lacks some operations in half precision.
        """
        is_chosen = self._wanted == AUTO and self.dtype is not torch.float32
        if not is_chosen or self.device.type != "cpu":
            return None
        self.enter_thread()
        sample = self.stages.probe(PROBED_TOKENS)
        try:
            outputs: Mapping[str, Any] = self.forward([sample])[0] if sample else {}
        except Exception as error:
            log.info("computing in float32: the model fails in %s: %s", self.dtype, error)
        else:
            floats = (value for value in outputs.values() if torch.is_tensor(value))
            if not any(value.isnan().any() for value in floats if value.is_floating_point()):
                return None
            log.info("computing in float32: the model yields NaN in %s", self.dtype)
        self.dtype = torch.float32
        self.model = self.read()
        return self.model

    @contextlib.contextmanager
    def in_single(self) -> Generator[None]:
        """Makes the model compute in float32 within the block, with weights that are read again."""
        previous = self.model, self.layers, self.dtype
        self.dtype = torch.float32
        try:
            self.model = self.read()
            yield
        finally:
            self.model, self.layers, self.dtype = previous

    @property
    def convertible(self) -> bool:
        return False

    @property
    def can_pack(self) -> bool:
        """True if the model's layers may run on a packed row. A model that is soon converted stays
        padded.
        """
        return self.layers is not None and not self.convertible

    def prepare(self, execution: Execution) -> Callable[[], None]:
        """Does nothing: the engine has no better form than the loaded model."""
        return lambda: None

    def enter_thread(self) -> None:
        # OpenMP keeps this number per thread that opens parallel regions.
        torch.set_num_threads(self.threads)

    @torch.inference_mode()
    def forward(
        self, samples: Sequence[Sample], watch: Watch = UNWATCHED
    ) -> list[Mapping[str, Any]]:
        with self._adapted(samples):
            outputs = self.run(samples[0].call, self.batch(samples))
        fetched = {name: _fetched(value) for name, value in outputs.items()}
        return [
            {**sample.features, **sample.extras, **row}
            for sample, row in zip(samples, self.layout.rows(samples, fetched), strict=True)
        ]

    def batch(self, samples: Sequence[Sample]) -> dict[str, torch.Tensor]:
        """Returns the model's inputs for the samples, on the device."""
        return {name: self._placed(value) for name, value in self.layout.batch(samples).items()}

    def _adapted(self, samples: Sequence[Sample]) -> contextlib.AbstractContextManager[None]:
        if self.adapters is None:
            return contextlib.nullcontext()
        return self.adapters.rows(self.model, [sample.adapter for sample in samples])

    def run(self, call: Hashable, batch: Mapping[str, torch.Tensor]) -> Mapping[str, Any]:
        """Returns the model's outputs by name."""
        packing = TokenPacking.of(batch)
        if packing is None or self.layers is None:
            return self.stages.run(self.model, call, batch)
        inputs = {name: value for name, value in batch.items() if name not in NAMES}
        adapted = (
            self.adapters.packed(packing.owners) if self.adapters else contextlib.nullcontext()
        )
        with self.layers.running(packing), adapted:
            outputs = self.stages.run(self.model, call, inputs)
        per_token = self.stages.per_token
        return {
            name: packing.packed(value) if name in per_token and torch.is_tensor(value) else value
            for name, value in outputs.items()
        }

    def _placed(self, value: torch.Tensor) -> torch.Tensor:
        dtype = self.dtype if value.is_floating_point() else None
        return value.to(self.device, dtype)


def _model_class(stages: Stages, folder: Path) -> Any:
    """Returns the first of the task's classes that supports the model's configuration."""
    library: Any = transformers
    config = library.AutoConfig.from_pretrained(str(folder), local_files_only=True)
    classes = [getattr(library, name) for name in stages.loaders(config)]
    if len(classes) == 1:
        return classes[0]
    return next(
        (model_class for model_class in classes if type(config) in model_class._model_mapping),
        classes[0],
    )


def _fetched(value: Any) -> Any:
    """Moves tensors to the CPU. Floats become single precision, which numpy supports."""
    if not torch.is_tensor(value):
        return value
    return value.float().cpu() if value.is_floating_point() else value.cpu()


def device_of(wanted: str) -> torch.device:
    """Returns the device that a deployment's `device` means."""
    if wanted == "auto":
        wanted = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(wanted)
