"""Loads language models that Stoker schedules itself: on torch, or on OpenVINO once they are
converted.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

from stoker.models.adapters.applying import Adapters, adapters_of
from stoker.models.adapters.stored import StoredWeights
from stoker.models.engines.interface import Progress
from stoker.models.engines.openmp import enter_to_probe, on_passing_thread
from stoker.models.engines.precision import dtype_of
from stoker.models.engines.recording_guard import RecordingGuard
from stoker.models.engines.torch import device_of
from stoker.models.llm import batch_invariance as sharing
from stoker.models.llm.checkpoint import TEXT, architecture, load_skeleton
from stoker.models.llm.engines import openvino as openvino_engine
from stoker.models.llm.engines import torch as torch_engine
from stoker.models.llm.engines.memory import (
    cache_bytes,
    claimed_cache_bytes,
    device_cache_bytes,
)
from stoker.models.llm.engines.paged import sizes
from stoker.models.llm.engines.paged.captured import CudaCapturing
from stoker.models.llm.engines.paged.runner import PagedRunner
from stoker.models.llm.interface import LanguageModel
from stoker.models.llm.model_types import IMAGE_TEXT_TO_TEXT
from stoker.models.llm.runner import Runner
from stoker.models.llm.scheduler import Scheduler
from stoker.models.llm.speculation import Speculation
from stoker.wire.protocol import Execution, ReplicaSpec, Sharing


class ScheduledEngine:
    """Implements `LanguageEngine` with Stoker's scheduler. A conversion in the specification was
    already tried and chosen.
    """

    def __init__(self, spec: ReplicaSpec, progress: Progress) -> None:
        self._spec = spec
        self._runner = on_passing_thread(lambda: _runner(spec, progress))
        self.max_length = self._runner.max_length
        self.vocabulary = self._runner.vocabulary
        self.sharing = self._runner.sharing
        self.adapters = self._runner.adapters
        model: Any = getattr(self._runner, "model", None)
        self.device = "cpu" if model is None else str(model.device)
        """Device of the weights. Conversions run on the CPU."""

    def guard(self, guard: RecordingGuard) -> None:
        """Notes each capture while it runs, from now on. Skips captures that ended earlier
        replicas.
        """
        if isinstance(self._runner, PagedRunner):
            self._runner.guard(guard)

    @property
    def convertible(self) -> bool:
        return (
            self._runner.name == "torch"
            and self._spec.pipeline != IMAGE_TEXT_TO_TEXT
            and device_of(self._spec.device).type == "cpu"
            and dtype_of(self._spec.dtype, device_of("cpu")) is not torch.float16
        )

    def begin(self, ends: Iterable[int]) -> LanguageModel:
        is_off = self._spec.options.get("speculation") == "off"
        speculation = None if is_off else Speculation()
        self._scheduler = Scheduler(self._runner, ends, speculation=speculation)
        return self._scheduler

    def prepare(self, execution: Execution) -> Callable[[], None]:
        runner = _converted(self._spec, execution, self.adapters)
        adapters = self.adapters
        if adapters is None:
            return lambda: self._scheduler.adopt(runner)
        folder = Path(self._spec.model_dir)
        base = load_skeleton(folder), StoredWeights(folder), runner.layers.keys()
        # If an adapter does not fit the converted model, the current model stays.
        adapters.check_all(*base)

        def take_over() -> None:
            adapters.rebase(*base)
            self._scheduler.adopt(runner)

        return take_over


def _runner(spec: ReplicaSpec, progress: Progress) -> Runner:
    if spec.execution:
        progress(0.1, "compiling")
        return _begun_converted(spec, spec.execution)
    progress(0.1, "reading weights")
    device = device_of(spec.device)
    folder = Path(spec.model_dir)
    kind = architecture(folder) if spec.pipeline == IMAGE_TEXT_TO_TEXT else TEXT
    model = torch_engine.load(folder, dtype_of(spec.dtype, device, folder), device, kind)
    runner = torch_engine.TorchRunner(
        model,
        threads=spec.threads,
        cache_bytes=cache_bytes(spec.cache_bytes),
        adapters=adapters_of(model, spec.adapters, spec.adapter_bytes),
    )
    # The paged runner also begins with a pass.
    enter_to_probe(model, runner.enter_thread)
    if spec.sharing is Sharing.PAGED:
        return _paged(runner, spec)
    if spec.sharing:
        runner.restrict(spec.sharing)
        return runner
    progress(0.9, "checking which inputs may share a batch")
    if paged := sharing.paged(runner, lambda: _paged(runner, spec)):
        return paged
    sharing.find(runner)
    return runner


def _paged(runner: torch_engine.TorchRunner, spec: ReplicaSpec) -> PagedRunner:
    """Returns a paged runner of a runner's model."""
    device = runner.model.device
    most_bytes = None
    if device.type == "cuda":
        weights = sum(parameter.nbytes for parameter in runner.model.parameters())
        wanted = device_cache_bytes(weights, sizes.free_bytes(device))
        if spec.device_bytes is not None:
            most_bytes = claimed_cache_bytes(weights, spec.device_bytes)
    else:
        wanted = cache_bytes(spec.cache_bytes)
    return PagedRunner(
        runner.model,
        threads=spec.threads,
        cache_bytes=wanted,
        most_cache_bytes=most_bytes,
        adapters=runner.adapters,
        positions=runner.rotary,
        capturing=CudaCapturing(device) if device.type == "cuda" else None,
    )


def _begun_converted(spec: ReplicaSpec, execution: Execution) -> Runner:
    if not spec.adapters:
        return _converted(spec, execution)
    folder = Path(spec.model_dir)
    base = load_skeleton(folder)
    adapters = Adapters(base, Path(spec.adapters), spec.adapter_bytes)
    runner = _converted(spec, execution, adapters)
    adapters.rebase(base, StoredWeights(folder), runner.layers.keys())
    return runner


def _converted(
    spec: ReplicaSpec, execution: Execution, adapters: Adapters | None = None
) -> openvino_engine.OpenVinoRunner:
    return openvino_engine.OpenVinoRunner(
        Path(execution.folder),
        threads=spec.threads,
        precision=execution.precision,
        cache_bytes=cache_bytes(spec.cache_bytes),
        adapters=adapters,
    )
