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
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from stoker.models.engines import packed_rows, rounding, sharing
from stoker.models.engines.openvino import IN_STEPS, ConversionVerdict, ConvertedForm
from stoker.models.engines.packed_attention import NotPackableError
from stoker.models.engines.packed_rows import RowPacking, RowPlan
from stoker.models.engines.precision import stored_dtype
from stoker.models.engines.probing import (
    CALIBRATED_BY,
    EXPORTED_TOKENS,
    batch_of,
    difference,
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
from stoker.wire.protocol import Sharing

log = logging.getLogger(__name__)

NICENESS = 10
"""Niceness of a conversion's process. Requests have priority."""
_EXPORTED_BATCH = 2
_EXPORTED_LENGTHS, _EXPORTED_ROWS = (24, 17, 9, 21, 13), ([0, 1], [2, 3], [4])
"""Lengths of the samples and their places in packed rows. All sizes of the tensors differ, because
an exported model computes equal sizes as one.
"""
_MOST_HEAD = 0.05
"""Maximum size of heads, as a share of the layers, if the layers are packed. Heads compute padded
rows, and packed batches have more padding than others.
"""

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
        _round(job, engine, folder, None)
        return ConvertedForm(IN_STEPS, "", {}, [])
    sample = stages.probe(EXPORTED_TOKENS)
    if sample is None:
        raise NotExportableError("The model has no sample input for a comparison.")
    form = _form_of_graph(engine, sample, folder / _FILE)
    _round(job, engine, folder, form)
    return form


def _form_of_graph(engine: TorchEngine, sample: Sample, path: Path) -> ConvertedForm:
    """Exports a model that is one graph. Its layers compute packed rows if that is possible."""
    if _may_pack(engine, sample):
        try:
            return _exported(engine, sample.call, _packed_batch(engine, sample), path)
        except MemoryError:
            raise
        except Exception as error:
            log.info("exporting with padded rows: %s", error)
    return _exported(engine, sample.call, batch_of(engine, sample, _EXPORTED_BATCH), path)


def _may_pack(engine: TorchEngine, sample: Sample) -> bool:
    """Returns True if the layers give the same answers for packed tokens, in less time."""
    stages, layers = engine.stages, engine.layers
    if layers is None or stages.hides_tokens or packed_rows.MASK not in sample.features:
        return False
    if layers.head_share(engine.model) > _MOST_HEAD:
        return False
    previous = stages.sharing
    try:
        return sharing.find(engine, stages) is Sharing.PACKED
    finally:
        stages.sharing = previous


@torch.no_grad()
def _packed_batch(engine: TorchEngine, sample: Sample) -> dict[str, torch.Tensor]:
    """Returns a batch with `packed_rows.NAMES`. Raises `NotPackableError` if its outputs differ
    from those of the padded batch.
    """
    stages = engine.stages
    probes = [stages.probe(length) for length in _EXPORTED_LENGTHS]
    samples = [probe for probe in probes if probe and probe.call == sample.call]
    if len(samples) < len(probes):
        raise NotPackableError("there are too few probes")
    padded = engine.batch(samples)
    lengths = [stages.length(probe) for probe in samples]
    plan = RowPlan(
        1 + max(sum(lengths[at] for at in row) for row in _EXPORTED_ROWS), _EXPORTED_ROWS
    )
    inputs = packed_rows.row_inputs(padded[packed_rows.MASK].numpy(), plan)
    packed = padded | dict(zip(packed_rows.NAMES, map(torch.as_tensor, inputs), strict=True))
    called = _Called(engine, sample.call)
    pairs = zip(
        *(engine.layout.rows(samples, called(batch)) for batch in (packed, padded)), strict=True
    )
    worst = max(difference(tensors(ours), tensors(theirs)) for ours, theirs in pairs)
    if not worst <= sharing.TOLERANCE:
        raise NotPackableError(f"packed rows differ by {worst:.1e}")
    return packed


def _round(job: Conversion, engine: TorchEngine, folder: Path, form: ConvertedForm | None) -> None:
    """Rounds the exported model to the job's number of bits.

    Args:
        form: form of a model that is one graph.
    """
    if not is_rounding(job):
        return
    if find_spec("nncf") is None:
        raise NotExportableError("NNCF, which rounds the model, is not installed on the server.")
    steps = engine.stages.steps
    batches = [batch_of(engine, item, 1) for item in examples(engine.stages, CALIBRATED_BY)]
    for path in sorted(folder.glob("*.xml")):
        started = time.perf_counter()
        if form:
            arrays = [form.arrays(item) for item in batches]
        else:
            inputs = [steps.inputs(path.name, item) if steps else () for item in batches]
            arrays = [[value.numpy() for value in item] for item in inputs if item]
        if job.in_int8 and arrays:
            rounding.quantize(path, arrays)
        else:
            rounding.round_weights(path, job.weight_format or "int8")
        log.info("%s rounded in %.1f s", path.name, time.perf_counter() - started)


@torch.no_grad()
def _exported(
    engine: TorchEngine, call: Hashable, batch: dict[str, torch.Tensor], path: Path
) -> ConvertedForm:
    """Writes the OpenVINO IR of the engine's pass for batches like this one."""
    started = time.perf_counter()
    variable = {*engine.stages.padding, *packed_rows.NAMES}
    dynamic = {
        name: dict.fromkeys((0, 1) if name in variable else (0,), torch.export.Dim.AUTO)
        for name in batch
    }
    called = _Called(engine, call)
    program = torch.export.export(called, (batch,), dynamic_shapes=(dynamic,), strict=False)
    import openvino

    library: Any = openvino
    model = library.convert_model(program)
    outputs = list(called(batch))
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
    return ConvertedForm(repr(call), path.name, shapes, outputs, _layers(program))


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
        self._layers = engine.layers
        self._call = call

    def forward(self, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        packing = RowPacking.of(batch)
        features = {name: batch[name] for name in batch if name not in packed_rows.NAMES}
        running = self._layers.running(packing) if self._layers else nullcontext()
        with running:
            return tensors(self._stages.run(self.model, self._call, features))
