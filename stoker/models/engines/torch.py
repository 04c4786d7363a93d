"""The torch engine: any architecture that transformers supports. The reference for correctness."""

import contextlib
import logging
from collections.abc import Callable, Generator, Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
import transformers

from stoker.models.adapters.applying import Adapters
from stoker.models.engines import completeness
from stoker.models.engines.interface import PassCache, Progress
from stoker.models.engines.invalid_numbers import outputs_with_nan
from stoker.models.engines.layout import BatchLayout, PackedLayout
from stoker.models.engines.packed_layers import PackedLayers
from stoker.models.engines.packing import NAMES, TokenPacking
from stoker.models.engines.precision import dtype_of
from stoker.models.engines.record import AUTO
from stoker.models.engines.recorders import recorder_of
from stoker.models.engines.shortage import free_unused
from stoker.models.engines.stateless import make_stateless
from stoker.models.engines.transfers import Outputs, Pending, stream_of
from stoker.models.stages.base import Sample, Stages
from stoker.models.stages.watch import UNWATCHED, Watch
from stoker.wire.passes import RecordedPasses
from stoker.wire.protocol import ChosenPrecision, Execution, ReplicaSpec

log = logging.getLogger(__name__)

PROBED_TOKENS = 8


class TorchEngine:
    name = "torch"
    adapters: Adapters | None = None
    graphs: PassCache | None = None
    """Recorded passes for `launch`."""
    precision: ChosenPrecision | None = None
    """Precision of an `auto` dtype, once it was chosen."""
    layers: PackedLayers | None = None
    """Layers that may run on a packed row."""

    def __init__(self, device: str, dtype: str, threads: int) -> None:
        self.threads = threads
        self.device = device_of(device)
        self.dtype = dtype_of(dtype, self.device)
        self._wanted = dtype
        self.stream = stream_of(self.device)
        self.recorder = recorder_of(self.device)

    @classmethod
    def of(cls, spec: ReplicaSpec) -> Self:
        """Returns the engine for a replica's specification."""
        engine = cls(spec.device, spec.dtype, spec.threads)
        engine.precision = spec.precision
        return engine

    def load(self, folder: Path, stages: Stages, progress: Progress) -> Any:
        progress(0.1, "reading weights")
        self.folder = folder
        self.stages = stages
        self.layout: BatchLayout = PackedLayout(stages, self.device)
        wanted = self.precision.dtype if self.precision else self._wanted
        self.dtype = dtype_of(wanted, self.device, folder)
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

    @property
    def is_automatic(self) -> bool:
        """True if the deployment left the choice of the precision to the server."""
        return self._wanted == AUTO

    def switch(self, dtype: torch.dtype) -> None:
        """Reads the weights again in another precision. Drops the present ones before, so that only
        one copy is in memory.
        """
        # They read the present weights.
        self.drop_recorded()
        self.model = self.model.to("meta")
        free_unused()
        self.dtype = dtype
        self.model = self.read()
        self.stages.attach(self.model)

    def widen(self) -> None:
        """Switches to single precision if `auto` chose half precision and a probe fails in it. A
        CPU lacks some operations in half precision.
        """
        if not self.is_automatic or self.dtype is torch.float32 or self.device.type != "cpu":
            return
        self.enter_thread()
        sample = self.stages.probe(PROBED_TOKENS)
        try:
            outputs: Mapping[str, Any] = self.forward([sample])[0] if sample else {}
        except Exception as error:
            log.info("computing in float32: the model fails in %s: %s", self.dtype, error)
        else:
            if sample is None or not outputs_with_nan(sample, outputs):
                return
            log.info("computing in float32: the model yields NaN in %s", self.dtype)
        self.switch(torch.float32)

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
            free_unused()

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

    def forward(
        self, samples: Sequence[Sample], watch: Watch = UNWATCHED
    ) -> list[Mapping[str, Any]]:
        staged = self.stage(samples)
        return self._launched(staged, lambda: self._computed(staged)).outputs()

    @property
    def is_asynchronous(self) -> bool:
        return self.stream.is_asynchronous

    def is_usable(self) -> bool:
        return self.stream.is_usable()

    def stage(self, samples: Sequence[Sample]) -> "StagedBatch":
        return StagedBatch(samples, self.batch(samples))

    def launch(self, staged: "StagedBatch") -> "LaunchedBatch":
        return self._launched(staged, lambda: self._replayed(staged) or self._computed(staged))

    def _launched(self, staged: "StagedBatch", compute: Callable[[], Outputs]) -> "LaunchedBatch":
        return LaunchedBatch(staged, self.layout, self.stream.launch(compute))

    @property
    def recorded(self) -> RecordedPasses:
        return self.graphs.state if self.graphs else RecordedPasses()

    @property
    def wants_idle_time(self) -> bool:
        return self.graphs is not None and self.graphs.is_wanting

    @property
    def idle_work_pays(self) -> bool:
        return self.graphs is not None and self.graphs.pays

    def use_idle_time(self) -> None:
        if self.graphs:
            self.graphs.record()

    def drop_recorded(self) -> None:
        if self.graphs:
            self.graphs.clear()

    @torch.inference_mode()
    def batch(self, samples: Sequence[Sample]) -> dict[str, torch.Tensor]:
        """Returns the model's inputs for the samples, on the device."""
        with self.stream.uploads():
            return {name: self._placed(value) for name, value in self.layout.batch(samples).items()}

    @torch.inference_mode()
    def _computed(self, staged: "StagedBatch") -> Outputs:
        with self._adapted(staged.samples):
            return self.run(staged.samples[0].call, staged.inputs)

    @torch.inference_mode()
    def _replayed(self, staged: "StagedBatch") -> Outputs | None:
        # Recorded passes have no adapters.
        if self.graphs is None or any(sample.adapter for sample in staged.samples):
            return None
        return self.graphs.replay(staged.samples[0].call, staged.inputs)

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
        # Converted after the copy: a conversion on the way would make the copy wait.
        placed = self.stream.staged(value).to(self.device, non_blocking=True)
        return placed.to(self.dtype) if value.is_floating_point() else placed


@dataclass(frozen=True)
class StagedBatch:
    """Batch whose inputs are on the device, or on their way there."""

    samples: Sequence[Sample]
    inputs: Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class LaunchedBatch:
    """Batch that the device computes. Keeps the inputs until then."""

    staged: StagedBatch
    layout: BatchLayout
    pending: Pending

    @property
    def is_ready(self) -> bool:
        return self.pending.is_ready

    def outputs(self) -> list[Mapping[str, Any]]:
        """Waits for the device. Returns one output per sample, as `Engine.forward`.

        Raises the errors of the pass.
        """
        samples = self.staged.samples
        rows = self.layout.rows(samples, self.pending.wait())
        return [
            {**sample.features, **sample.extras, **row}
            for sample, row in zip(samples, rows, strict=True)
        ]


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


def device_of(wanted: str) -> torch.device:
    """Returns the device that a deployment's `device` means."""
    if wanted == "auto":
        wanted = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(wanted)
