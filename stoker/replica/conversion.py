"""Converts a model for OpenVINO in a separate process.

The steps are `torch.export` → `openvino.convert_model`. For models that run in many steps, their
steps are exported (`stoker.models.stages.base.Steps`). A `trial` checks whether the result is
correct and fast on a machine.
"""

import logging
import os
import random
import time
from collections.abc import Hashable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from stoker.models.engines import rounding
from stoker.models.engines.openvino import IN_STEPS, ConversionVerdict, ConvertedForm
from stoker.models.engines.precision import stored_dtype
from stoker.models.engines.probing import (
    CALIBRATED_BY,
    EXPORTED_TOKENS,
    batch_of,
    examples,
    tensors,
)
from stoker.models.engines.stateless import shortest_sparse
from stoker.models.engines.torch import TorchEngine
from stoker.models.llm.engines.export import export
from stoker.models.llm.engines.ir import IR
from stoker.models.stages.base import Sample
from stoker.models.stages.stateful import NotExportableError
from stoker.models.tasks.registry import GENERATING, STAGES
from stoker.replica import walls
from stoker.wire.conversions import Conversion

log = logging.getLogger(__name__)

NICENESS = 10
"""Niceness of a conversion's process. Requests have priority."""
_EXPORTED_BATCH = 2

GENERATE = "generate"
"""Value of `call` in a language model's form."""
_FILE = "model.xml"


def run(job: Conversion) -> int:
    """Converts and writes the verdict into the job's folder. Returns the process's exit code."""
    if is_rounding(job):
        # NNCF uses all cores that it may run on.
        cores = list(os.sched_getaffinity(0))
        os.sched_setaffinity(0, random.sample(cores, min(job.threads, len(cores))))
    walls.around_conversion(job)
    os.nice(NICENESS)
    convert(job)
    return 0


def convert(job: Conversion) -> None:
    """Converts in this process and writes the verdict into the job's folder."""
    folder = Path(job.folder)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        stored = str(stored_dtype(Path(job.model_dir)) or "").removeprefix("torch.")
        verdict = ConversionVerdict(
            [_form(job, folder)], is_rounded=is_rounding(job), stored=stored
        )
    except NotExportableError as error:
        verdict = ConversionVerdict([], str(error))
    except Exception as error:
        log.exception("conversion failed")
        verdict = ConversionVerdict([], f"The conversion failed with {type(error).__name__}.")
    log.info("converted: %s", verdict)
    verdict.write(folder)


def is_rounding(job: Conversion) -> bool:
    """True if the conversion has fewer bits than the model."""
    return job.in_int8 or job.weight_format is not None


def _form(job: Conversion, folder: Path) -> ConvertedForm:
    model_dir = Path(job.model_dir)
    if job.pipeline in GENERATING:
        export(model_dir, folder, threads=job.threads, weight_format=job.weight_format)
        return ConvertedForm(GENERATE, IR, {}, ["logits"])
    stages = STAGES[job.pipeline](model_dir)
    stages.limits = job.limits
    engine = TorchEngine("cpu", "float32", job.threads)
    stages.attach(engine.load(model_dir, stages, lambda _fraction, _step: None))
    engine.enter_thread()
    if shortest_sparse(stages.config):
        raise NotExportableError("The model's computation depends on the length of an input.")
    if stages.steps:
        stages.steps.export(engine.model, folder)
        _round(job, engine, folder)
        return ConvertedForm(IN_STEPS, "", {}, [])
    sample = stages.probe(EXPORTED_TOKENS)
    if sample is None:
        raise NotExportableError("The model has no sample input for a comparison.")
    form = _exported(engine, sample, folder / _FILE)
    _round(job, engine, folder)
    return form


def _round(job: Conversion, engine: TorchEngine, folder: Path) -> None:
    """Rounds the exported model to the job's number of bits."""
    if not is_rounding(job):
        return
    if find_spec("nncf") is None:
        raise NotExportableError("NNCF, which rounds the model, is not installed on the server.")
    steps = engine.stages.steps
    batches = [batch_of(engine, item, 1) for item in examples(engine.stages, CALIBRATED_BY)]
    for path in sorted(folder.glob("*.xml")):
        started = time.perf_counter()
        inputs = [steps.inputs(path.name, item) if steps else item.values() for item in batches]
        arrays = [[value.numpy() for value in item] for item in inputs if item]
        if job.in_int8 and arrays:
            rounding.quantize(path, arrays)
        else:
            rounding.round_weights(path, job.weight_format or "int8")
        log.info("%s rounded in %.1f s", path.name, time.perf_counter() - started)


@torch.no_grad()
def _exported(engine: TorchEngine, sample: Sample, path: Path) -> ConvertedForm:
    """Writes the OpenVINO IR of the engine's pass for samples like this one."""
    started = time.perf_counter()
    batch = batch_of(engine, sample, _EXPORTED_BATCH)
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
    outputs = list(tensors(engine.run(sample.call, batch)))
    if len(model.inputs) != len(batch) or len(model.outputs) != len(outputs):
        raise NotExportableError(
            "The converted model has other inputs or outputs than the original."
        )
    library.save_model(model, path, compress_to_fp16=False)
    log.info("written in %.1f s", time.perf_counter() - started)
    # An IR may accept any size even if only one was exported, and computes nonsense for the others.
    shapes = {
        name: [
            None if axis in dynamic[name] and size.is_dynamic else value.shape[axis]
            for axis, size in enumerate(model_input.partial_shape)
        ]
        for (name, value), model_input in zip(batch.items(), model.inputs, strict=True)
    }
    return ConvertedForm(repr(sample.call), path.name, shapes, outputs, _layers(program))


def _layers(program: torch.export.ExportedProgram) -> dict[str, str]:
    """Maps the node of each linear layer to its module. Converted layers have the names of their
    nodes.
    """
    parameters = program.graph_signature.inputs_to_parameters
    layers: dict[str, str] = {}
    for node in program.graph.nodes:
        if node.target is torch.ops.aten.linear.default:
            module, _, kind = parameters.get(node.args[1].name, "").rpartition(".")
            if kind == "weight":
                layers[node.name] = module.removeprefix("model.")
    return layers


class _Called(torch.nn.Module):
    """`Stages.run` for one `call`, as a module."""

    def __init__(self, engine: TorchEngine, call: Hashable) -> None:
        super().__init__()
        self.model = engine.model
        self._stages = engine.stages
        self._call = call

    def forward(self, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return tensors(self._stages.run(self.model, self._call, batch))
