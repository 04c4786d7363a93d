"""Runs a converted model for the first time, as it will serve, in a process that may die of it.

Libraries choose their kernels by processor, precision and number of threads, and some of these
combinations crash, hang or compute something else. So each is tried here before a replica has it:
alone, in a batch and in pieces, compared with what torch gives. Should this process end or hang,
that is the verdict, and the gateway writes it.
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
from stoker.models.engines.openvino import Converted, Verdict, opened
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
from stoker.wire.protocol import Precision, Trial, TrialVerdict, sign_of

log = logging.getLogger(__name__)

TOLERANCES: Mapping[Precision, float] = {"f32": 1e-3, "bf16": 0.1}
"""Largest difference, as a share of the largest output. bfloat16 keeps 8 bits of a number: what is
in order differs by a hundredth or two, what is not by as much as the outputs themselves.
"""
PROBED_BATCHES = (1, 3)
TIMED_BATCHES = (1, 4)
PASSES, TIMED_S = 4, 6.0
"""Passes of both to time, or two where they take longer than so many seconds."""


class FailedError(Exception):
    """It is not fit to serve; the message tells why."""


def run(job: Trial) -> int:
    """Try it, and write the verdict. Returns the process's exit code."""
    walls.around_trial(job)
    os.nice(NICENESS)
    try_out(job)
    return 0


def try_out(job: Trial) -> None:
    """Try it in this process, and write the verdict."""
    try:
        verdict = _tried(job)
    except (FailedError, NotExportableError) as error:
        verdict = TrialVerdict(passed=False, reason=str(error))
    except Exception as error:
        log.exception("trial failed")
        verdict = TrialVerdict(passed=False, reason=f"{type(error).__name__} when it was tried.")
    log.info("tried %s: %s", job.execution, verdict)
    path = Path(job.verdict_path)
    part = path.with_suffix(".part")
    part.write_bytes(msgspec.json.encode(verdict))
    part.replace(path)


def _tried(job: Trial) -> TrialVerdict:
    if job.execution.precision == "bf16" and not _computes_in_bf16():
        raise FailedError("This processor does not compute in bfloat16.")
    sign = Path(sign_of(job.verdict_path))
    if job.pipeline in GENERATING:
        return _language_model(job, sign.touch)
    return _stages(job, sign.touch)


def _computes_in_bf16() -> bool:
    import openvino

    return "BF16" in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")


def _accepted(found: float, precision: Precision) -> float:
    if not found <= TOLERANCES[precision]:
        raise FailedError(f"It differs from torch by {found:.1e}.")
    return found


# --- language models ---


def _language_model(job: Trial, alive: Callable[[], None]) -> TrialVerdict:
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
    found = known.difference(probes.computed(runner, known.prompts, alive))
    return TrialVerdict(passed=True, difference=_accepted(found, execution.precision))


# --- all others ---


@torch.inference_mode()
def _stages(job: Trial, alive: Callable[[], None]) -> TrialVerdict:
    folder = Path(job.model_dir)
    stages = STAGES[job.pipeline](folder)
    stages.limits = job.limits
    engine = TorchEngine("cpu", "float32", job.threads)
    stages.attach(engine.load(folder, stages, lambda _fraction, _step: None))
    engine.enter_thread()
    # Where nothing is padded, all of them are the same.
    lengths = PROBED_TOKENS if stages.padding else PROBED_TOKENS[:1]
    samples = [one for one in map(stages.probe, lengths) if one is not None]
    if not samples:
        raise FailedError("There is no sample to compare it by.")
    forms = opened(job.execution, stages, job.threads)
    alive()
    if Verdict.read(Path(job.execution.folder)).is_rounded:
        verdict = _agreed(forms, engine, samples, job.execution.precision, alive)
    else:
        worst = max(_differs(form, engine, samples, PROBED_BATCHES, alive) for form in forms)
        if stages.padding and (long := stages.probe(LONG_TOKENS)):
            worst = max(worst, *(_differs(form, engine, [long], (1,), alive) for form in forms))
        found = _accepted(worst, job.execution.precision)
        verdict = TrialVerdict(passed=True, difference=found)
    # What it would replace.
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
    """The verdict on a rounded model, by examples that it was not rounded by."""
    found = Agreement()
    # Probes are for what fails; nobody asks for anything like them.
    for sample in (*probes, *examples(engine.stages, RETRIED_BY)):
        is_example = all(sample is not one for one in probes)
        for form in forms:
            for size in PROBED_BATCHES:
                batch = batch_of(engine, sample, size)
                if not form.fits(sample.call, batch):
                    raise FailedError("It takes one size only once it is converted.")
                ours, theirs = form.beside(engine, sample.call, batch)
                if is_example:
                    found.add(*(_read(engine.stages, sample, one) for one in (ours, theirs)))
                alive()
    least = LEAST_COSINE if precision == "i8" else LEAST_COSINE_OF_WEIGHTS
    if not math.isfinite(found.difference):
        raise FailedError("Once rounded, it computes what is no number, or of another shape.")
    if not found.cosine >= least:
        raise FailedError(
            "Once rounded, its answers turn away from torch's: the least cosine is "
            f"{found.cosine:.3f}, and has to be {least:g}."
        )
    if found.labels < LEAST_LABELS:
        raise FailedError(
            f"Once rounded, {found.labels:.1%} of the labels that led clearly stay on top, and "
            f"{LEAST_LABELS:.0%} have to."
        )
    return TrialVerdict(
        passed=True, difference=found.difference, cosine=found.cosine, labels=found.labels
    )


def _read(
    stages: Stages, sample: Sample, outputs: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Without what padding made, which nobody reads."""
    own = stages.length(sample)
    kept = slice(0, own) if stages.padding_side == "right" else slice(-own, None)
    return {
        name: value[:, kept] if name in stages.per_token else value
        for name, value in outputs.items()
    }


def _differs(
    form: Converted,
    engine: TorchEngine,
    samples: Sequence[Sample],
    sizes: Sequence[int],
    alive: Callable[[], None],
) -> float:
    """The largest difference from torch."""
    worst = 0.0
    for sample in samples:
        for size in sizes:
            batch = batch_of(engine, sample, size)
            if not form.fits(sample.call, batch):
                raise FailedError("It takes one size only once it is converted.")
            ours = tensors(form(sample.call, batch))
            worst = max(worst, difference(ours, tensors(engine.run(sample.call, batch))))
            alive()
    return worst


def _in_bf16(job: Trial, folder: Path, stages: Stages) -> TorchEngine:
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
    """Over `rival`: the geometric mean of a batch of each size. `engine` makes the form's."""
    ratios: list[float] = []
    for size in TIMED_BATCHES:
        theirs, own = batch_of(rival, sample, size), batch_of(engine, sample, size)
        seconds, ours = _fastest(
            lambda batch=theirs: rival.run(sample.call, batch),
            lambda batch=own: form(sample.call, batch),
        )
        ratios.append(seconds / ours)
        alive()
    return math.prod(ratios) ** (1 / len(ratios))


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
