"""Converts a model for OpenVINO and judges the result, in a process of its own.

`torch.export` → `openvino.convert_model` → comparison with torch on other lengths and batches than
the one exported. What cannot be converted, or differs, stays with torch; so does what is not
faster, save where OpenVINO was asked for. Of models that run in many steps, it is these that are
exported (`stoker.replica.stages.Steps`).
"""

import dataclasses
import logging
import math
import os
import time
from collections.abc import Callable, Hashable, Mapping
from pathlib import Path
from typing import Any

import torch

from stoker.replica import sandbox
from stoker.replica.engines.openvino import IN_STEPS, Converted, Form, Verdict, opened
from stoker.replica.engines.stateful import NotExportableError
from stoker.replica.engines.torch import TorchEngine
from stoker.replica.llm.export import export
from stoker.replica.llm.ir import IR
from stoker.replica.protocol import Conversion
from stoker.replica.stages import Sample
from stoker.tasks.registry import GENERATING, STAGES

log = logging.getLogger(__name__)

NICENESS = 10
"""Requests come first."""
EXPORTED_TOKENS, PROBED_TOKENS = 24, (8, 24, 72)
EXPORTED_BATCH, PROBED_BATCHES = 2, (1, 3)
TIMED_BATCHES = (1, 4)
PASSES, TIMED_S = 4, 6.0
"""Passes of both to time, or two where they take longer than so many seconds."""
TOLERANCE = 1e-3
"""Largest difference from torch, as a share of torch's largest output."""
WORTH = 1.05
"""How much faster than torch it has to be, where nobody asked for OpenVINO."""

GENERATE = "generate"
"""The `call` of a language model's form."""
_FILE = "model.xml"


class NotConvertedError(Exception):
    """The model stays with torch; the message tells why."""


def run(job: Conversion) -> int:
    """Convert, and write the verdict into the job's folder. Returns the process's exit code."""
    sandbox.confine()
    os.nice(NICENESS)
    convert(job)
    return 0


def convert(job: Conversion) -> None:
    """Convert in this process, and write the verdict into the job's folder."""
    folder = Path(job.folder)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        verdict = _verdict(_form(job, folder))
    except (NotConvertedError, NotExportableError) as error:
        verdict = Verdict([], str(error))
    except Exception as error:
        log.exception("the conversion failed")
        verdict = Verdict([], f"{type(error).__name__} while it was converted.")
    log.info("converted: %s", verdict)
    verdict.write(folder)


def _verdict(form: Form) -> Verdict:
    if form.speedup is None or form.speedup >= WORTH:
        return Verdict([form])
    slow = f"It is only {form.speedup:.2f} times as fast as torch."
    return Verdict([form], slow, faster=False)


def _form(job: Conversion, folder: Path) -> Form:
    if job.pipeline not in GENERATING:
        return _converted(job, folder)
    difference = export(
        Path(job.model_dir), folder, threads=job.threads, weight_format=job.weight_format
    )
    return Form(GENERATE, IR, {}, ["logits"], difference)


def _converted(job: Conversion, folder: Path) -> Form:
    stages = STAGES[job.pipeline](Path(job.model_dir))
    stages.limits = job.limits
    engine = TorchEngine("cpu", "float32", job.threads)
    stages.attach(engine.load(Path(job.model_dir), stages, lambda _fraction, _step: None))
    engine.enter_thread()
    # Where nothing is padded, all of them are the same.
    probed = PROBED_TOKENS if stages.padding else PROBED_TOKENS[:1]
    probes = [stages.probe(tokens) for tokens in (EXPORTED_TOKENS, *probed)]
    samples = [probe for probe in probes if probe is not None]
    if not samples:
        raise NotConvertedError("There is no sample to compare it by.")
    if stages.steps:
        stages.steps.export(engine.model, folder)
        form = Form(IN_STEPS, "", {}, [], difference=0.0)
    else:
        form = _exported(engine, samples[0], folder / _FILE)
    return _judged(form, engine, opened(folder, form, stages, job.threads), samples[1:])


@torch.no_grad()
def _exported(engine: TorchEngine, sample: Sample, path: Path) -> Form:
    """Write the OpenVINO IR of what the engine does with samples like this one."""
    started = time.perf_counter()
    batch = _batch(engine, sample, EXPORTED_BATCH)
    padding = engine.stages.padding
    dynamic = {
        name: dict.fromkeys((0, 1) if name in padding else (0,), torch.export.Dim.AUTO)
        for name in batch
    }
    program = torch.export.export(
        _Called(engine, sample.call), (batch,), dynamic_shapes=(dynamic,), strict=False
    )
    import openvino

    library: Any = openvino
    model = library.convert_model(program)
    outputs = list(_tensors(engine.run(sample.call, batch)))
    if len(model.inputs) != len(batch) or len(model.outputs) != len(outputs):
        raise NotConvertedError("It takes or gives something else once it is converted.")
    library.save_model(model, path, compress_to_fp16=False)
    log.info("written in %.1f s", time.perf_counter() - started)
    shapes = {
        name: [size.get_length() if size.is_static else None for size in given.partial_shape]
        for name, given in zip(batch, model.inputs, strict=True)
    }
    return Form(repr(sample.call), path.name, shapes, outputs, difference=0.0)


class _Called(torch.nn.Module):
    """What `Stages.run` does for one `call`, as a module."""

    def __init__(self, engine: TorchEngine, call: Hashable) -> None:
        super().__init__()
        self.model = engine.model
        self._stages = engine.stages
        self._call = call

    def forward(self, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return _tensors(self._stages.run(self.model, self._call, batch))


@torch.inference_mode()
def _judged(form: Form, engine: TorchEngine, converted: Converted, samples: list[Sample]) -> Form:
    """The form, with what was measured of it. Raises `NotConvertedError`."""
    difference = 0.0
    for sample in samples:
        for size in PROBED_BATCHES:
            batch = _batch(engine, sample, size)
            if not converted.fits(sample.call, batch):
                raise NotConvertedError("It takes one size only once it is converted.")
            torch_gives = _tensors(engine.run(sample.call, batch))
            given = converted(sample.call, batch)
            difference = max(difference, _difference(given, torch_gives))
    if not difference <= TOLERANCE:
        raise NotConvertedError(f"It differs from torch by {difference:.1e}.")
    ratios: list[float] = []
    for size in TIMED_BATCHES:
        sample, batch = samples[0], _batch(engine, samples[0], size)
        seconds, ours = _fastest(
            lambda sample=sample, batch=batch: engine.run(sample.call, batch),
            lambda sample=sample, batch=batch: converted(sample.call, batch),
        )
        ratios.append(seconds / ours)
    speedup = math.sqrt(math.prod(ratios))
    return dataclasses.replace(form, difference=difference, speedup=speedup)


def _batch(engine: TorchEngine, sample: Sample, size: int) -> dict[str, torch.Tensor]:
    stages = engine.stages
    return engine.batch([sample] * size, stages.padded_length(stages.length(sample)))


def _tensors(outputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """A model's outputs, all of which have to be tensors."""
    found = {name: value for name, value in outputs.items() if value is not None}
    if not all(isinstance(value, torch.Tensor) for value in found.values()):
        raise NotConvertedError("Its outputs are more than tensors.")
    return found


def _difference(ours: Mapping[str, torch.Tensor], theirs: Mapping[str, torch.Tensor]) -> float:
    """The largest, over all outputs, as a share of the largest value there.

    Whole numbers, such as tokens, have to be equal; so do shapes.
    """
    worst = 0.0
    for name, value in theirs.items():
        if ours[name].shape != value.shape:
            return math.inf
        if not value.is_floating_point():
            worst = worst if torch.equal(ours[name], value) else math.inf
            continue
        largest = float((ours[name] - value).abs().max() / value.abs().max().clamp(min=1e-6))
        worst = max(worst, largest)
    return worst


def _fastest(*works: Callable[[], object]) -> list[float]:
    """Seconds that each takes, at best. They take turns, so that what else runs slows all alike."""
    rounds: list[list[float]] = []
    while len(rounds) < 2 or (len(rounds) < PASSES and sum(map(sum, rounds)) < TIMED_S):
        rounds.append([_seconds(work) for work in works])
    return [min(one) for one in zip(*rounds, strict=True)]


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started
