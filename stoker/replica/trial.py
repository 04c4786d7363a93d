"""Runs a converted model for the first time, as it will serve, in a process that may crash.

Libraries choose their kernels by processor, precision and number of threads. Some of these
combinations crash, hang or compute something else. So each is tried here before a replica uses it:
alone, in a batch and in pieces, compared with torch's output. If this process ends or hangs, the
gateway writes that as the verdict.
"""

import logging
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec
import torch

from stoker.models.engines.agreement import (
    LEAST_COSINE,
    LEAST_COSINE_OF_WEIGHTS,
    LEAST_LABELS,
    Agreement,
)
from stoker.models.engines.openvino import ConversionVerdict, Converted, opened
from stoker.models.engines.probing import (
    LONG_TOKENS,
    PROBED_TOKENS,
    RETRIED_BY,
    batch_of,
    difference,
    examples,
    tensors,
)
from stoker.models.engines.torch import TorchEngine
from stoker.models.llm import probes
from stoker.models.llm.engines.openvino import OpenVinoRunner
from stoker.models.stages.base import Sample, Stages
from stoker.models.stages.stateful import NotExportableError
from stoker.models.tasks.registry import GENERATING, STAGES
from stoker.replica import walls
from stoker.replica.conversion import NICENESS
from stoker.wire.conversions import ConversionTrial, TrialVerdict, sign_of
from stoker.wire.protocol import Precision

log = logging.getLogger(__name__)

TOLERANCES: Mapping[Precision, float] = {"f32": 1e-3, "bf16": 0.1}
"""Maximum difference, as a share of the largest output. bfloat16 keeps 8 bits of a number: correct
outputs differ by a hundredth or two, wrong ones by as much as the outputs themselves.
"""
PROBED_BATCHES = (1, 3)
TIMED_BATCHES = (1, 4)
PASSES, TIMED_S = 4, 6.0
"""Number of timed passes of both, and the seconds after which two passes suffice."""


class TrialFailedError(Exception):
    """The model is not fit to serve. The message explains why."""


def run(job: ConversionTrial) -> int:
    """Tries the model and writes the verdict. Returns the process's exit code."""
    walls.around_trial(job)
    os.nice(NICENESS)
    try_out(job)
    return 0


def try_out(job: ConversionTrial) -> None:
    """Tries the model in this process and writes the verdict."""
    try:
        verdict = _tried(job)
    except (TrialFailedError, NotExportableError) as error:
        verdict = TrialVerdict(passed=False, reason=str(error))
    except Exception as error:
        log.exception("trial failed")
        verdict = TrialVerdict(
            passed=False, reason=f"The trial failed with {type(error).__name__}."
        )
    log.info("tried %s: %s", job.execution, verdict)
    path = Path(job.verdict_path)
    part = path.with_suffix(".part")
    part.write_bytes(msgspec.json.encode(verdict))
    part.replace(path)


def _tried(job: ConversionTrial) -> TrialVerdict:
    if job.execution.precision == "bf16" and not _computes_in_bf16():
        raise TrialFailedError("This processor does not compute in bfloat16.")
    sign = Path(sign_of(job.verdict_path))
    if job.pipeline in GENERATING:
        return _language_model(job, sign.touch)
    return _stages(job, sign.touch)


def _computes_in_bf16() -> bool:
    import openvino

    return "BF16" in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")


def _accepted(found: float, precision: Precision) -> float:
    if not found <= TOLERANCES[precision]:
        raise TrialFailedError(f"It differs from torch by {found:.1e}.")
    return found


# --- language models ---


def _language_model(job: ConversionTrial, alive: Callable[[], None]) -> TrialVerdict:
    execution = job.execution
    folder = Path(execution.folder)
    runner = OpenVinoRunner(
        folder,
        threads=job.threads,
        precision=execution.precision,
        cache_bytes=probes.CACHE_BYTES,
    )
    runner.enter_thread()
    alive()
    known = probes.Probes.read(folder)
    worst = known.difference(probes.computed(runner, known.prompts, alive))
    return TrialVerdict(passed=True, difference=_accepted(worst, execution.precision))


# --- all others ---


@torch.inference_mode()
def _stages(job: ConversionTrial, alive: Callable[[], None]) -> TrialVerdict:
    folder = Path(job.model_dir)
    stages = STAGES[job.pipeline](folder)
    stages.limits = job.limits
    engine = TorchEngine("cpu", "float32", job.threads)
    stages.attach(engine.load(folder, stages, lambda _fraction, _step: None))
    engine.enter_thread()
    # Without padding, all samples have the same length.
    lengths = PROBED_TOKENS if stages.padding else PROBED_TOKENS[:1]
    samples = [sample for sample in map(stages.probe, lengths) if sample is not None]
    if not samples:
        raise TrialFailedError("The model has no sample input for a comparison.")
    forms = opened(job.execution, stages, job.threads)
    alive()
    if ConversionVerdict.read(Path(job.execution.folder)).is_rounded:
        verdict = _agreed(forms, engine, samples, job.execution.precision, alive)
    else:
        worst = max(_differs(form, engine, samples, PROBED_BATCHES, alive) for form in forms)
        if stages.padding and (long := stages.probe(LONG_TOKENS)):
            worst = max(worst, *(_differs(form, engine, [long], (1,), alive) for form in forms))
        for form in forms:
            if form.is_packed:
                worst = max(worst, _differs_together(form, engine, samples * 2, alive))
        accepted = _accepted(worst, job.execution.precision)
        verdict = TrialVerdict(passed=True, difference=accepted)
    # The engine that the converted model would replace.
    rival = _in_bf16(job, folder, stages) if job.execution.precision == "bf16" else engine
    speedup = math.prod(_speedup(form, engine, rival, samples[0], alive) for form in forms)
    return msgspec.structs.replace(verdict, speedup=speedup ** (1 / len(forms)))


def _agreed(
    forms: Sequence[Converted],
    engine: TorchEngine,
    probes: Sequence[Sample],
    precision: Precision,
    alive: Callable[[], None],
) -> TrialVerdict:
    """Returns the verdict on a rounded model, by examples that were not used to round it."""
    agreement = Agreement()
    # Probes only detect failures; no caller sends similar inputs.
    for sample in (*probes, *examples(engine.stages, RETRIED_BY)):
        is_example = all(sample is not one for one in probes)
        for form in forms:
            for size in PROBED_BATCHES:
                batch = batch_of(engine, sample, size)
                if not form.fits(sample.call, batch):
                    raise TrialFailedError("The converted model accepts only one input size.")
                ours, theirs = form.beside(engine, sample.call, batch)
                if is_example:
                    agreement.add(*(_read(engine.stages, sample, one) for one in (ours, theirs)))
                alive()
    for form in forms:
        if form.is_packed:
            _add_together(agreement, form, engine, alive)
    least = LEAST_COSINE if precision == "i8" else LEAST_COSINE_OF_WEIGHTS
    if not math.isfinite(agreement.difference):
        raise TrialFailedError(
            "The rounded model computes values that are not numbers, or of another shape."
        )
    if not agreement.cosine >= least:
        raise TrialFailedError(
            "The rounded model's answers differ from torch's: the lowest cosine is "
            f"{agreement.cosine:.3f}, and it must be at least {least:g}."
        )
    if agreement.labels < LEAST_LABELS:
        raise TrialFailedError(
            f"After rounding, {agreement.labels:.1%} of the labels that led clearly stay on "
            f"top, but at least {LEAST_LABELS:.0%} must."
        )
    return TrialVerdict(
        passed=True,
        difference=agreement.difference,
        cosine=agreement.cosine,
        labels=agreement.labels,
    )


def _add_together(
    agreement: Agreement, form: Converted, engine: TorchEngine, alive: Callable[[], None]
) -> None:
    """Adds a batch of examples of different lengths to an agreement. Copies of one example would
    not show that packed samples mix.
    """
    samples = examples(engine.stages, RETRIED_BY)
    if not samples:
        return
    outputs = form.beside(engine, samples[0].call, engine.batch(samples))
    rows = (engine.layout.rows(samples, side) for side in outputs)
    for ours, theirs in zip(*rows, strict=True):
        agreement.add(ours, theirs)
    alive()


def _read(
    stages: Stages, sample: Sample, outputs: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Returns the outputs of copies of a sample without the padded positions, which no caller
    reads.
    """
    length = stages.length(sample)
    positions = slice(0, length) if stages.padding_side == "right" else slice(-length, None)
    return {
        name: value[:, positions] if name in stages.per_token else value
        for name, value in outputs.items()
    }


def _differs(
    form: Converted,
    engine: TorchEngine,
    samples: Sequence[Sample],
    sizes: Sequence[int],
    alive: Callable[[], None],
) -> float:
    """Returns the largest difference from torch."""
    worst = 0.0
    for sample in samples:
        for size in sizes:
            batch = batch_of(engine, sample, size)
            if not form.fits(sample.call, batch):
                raise TrialFailedError("The converted model accepts only one input size.")
            ours, theirs = (
                _read(engine.stages, sample, tensors(outputs))
                for outputs in (form(sample.call, batch), engine.run(sample.call, batch))
            )
            worst = max(worst, difference(ours, theirs))
            alive()
    return worst


def _differs_together(
    form: Converted, engine: TorchEngine, samples: Sequence[Sample], alive: Callable[[], None]
) -> float:
    """Returns the largest difference from torch for a batch of samples of different lengths."""
    batch = engine.batch(samples)
    pair = form(samples[0].call, batch), engine.run(samples[0].call, batch)
    alive()
    rows = (engine.layout.rows(samples, tensors(outputs)) for outputs in pair)
    return max(difference(ours, theirs) for ours, theirs in zip(*rows, strict=True))


def _in_bf16(job: ConversionTrial, folder: Path, stages: Stages) -> TorchEngine:
    engine = TorchEngine("cpu", "bfloat16", job.threads)
    engine.load(folder, stages, lambda _fraction, _step: None)
    return engine


def _speedup(
    form: Converted,
    engine: TorchEngine,
    rival: TorchEngine,
    sample: Sample,
    alive: Callable[[], None],
) -> float:
    """Returns the speedup over `rival`: the geometric mean over batch sizes. `engine` makes the
    form's batches.
    """
    ratios: list[float] = []
    for size in TIMED_BATCHES:
        theirs, batch_of_form = batch_of(rival, sample, size), batch_of(engine, sample, size)
        seconds, ours = _fastest(
            lambda batch=theirs: rival.run(sample.call, batch),
            lambda batch=batch_of_form: form(sample.call, batch),
        )
        ratios.append(seconds / ours)
        alive()
    return math.prod(ratios) ** (1 / len(ratios))


def _fastest(*works: Callable[[], object]) -> list[float]:
    """Returns the least seconds of each work. They take turns, so that other load slows all
    alike.
    """
    rounds: list[list[float]] = []
    while len(rounds) < 2 or (len(rounds) < PASSES and sum(map(sum, rounds)) < TIMED_S):
        rounds.append([_seconds(work) for work in works])
    return [min(durations) for durations in zip(*rounds, strict=True)]


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started
