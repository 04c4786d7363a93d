"""Finds what may share a forward pass without changing anybody's answer.

Most models give a sample the same result alone, padded, or beside others. Some do not: padding
takes part in a Fourier transform, in landmarks or in a convolution. A list of their names would end
where the next one begins; so a model is asked, once, before its first answer.
"""

import dataclasses
import logging
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any

import torch

from stoker.models.engines.probing import difference
from stoker.models.engines.stateless import shortest_sparse
from stoker.models.engines.torch import TorchEngine
from stoker.models.stages.base import Sample, Stages
from stoker.wire.protocol import Sharing

log = logging.getLogger(__name__)

Output = Mapping[str, Any]

LENGTHS = (5, 21, 50)
"""Tokens: none of them is one that lengths are rounded up to."""
TOLERANCE, HALF_TOLERANCE = 2e-5, 3e-2
"""Largest difference that other kernels make, as a share of the largest output: in float32, and in
half precision. A model beyond it pays with throughput; one below it would pay with its answers.
"""

MOST_BYTES = 512 << 20
"""Of weights that are read once more to be asked in single precision."""


class UnfitError(ValueError):
    """The model cannot serve: it fails on an input that is in order."""


def find(engine: TorchEngine, stages: Stages) -> Sharing:
    """What samples of a loaded model may share. Leaves the stages with some other setting.

    Raises `UnfitError`.
    """
    stages.check(lambda sample: _alone(engine, sample))
    found = _found(engine, stages)
    if found is Sharing.PADDED or engine.dtype == torch.float32 or not _is_small(engine):
        return found
    # It may be no more than rounding: a score near nothing is made of numbers that are not. What
    # the padding does to answers is the same in any precision, and shows in the finest.
    with engine.in_single():
        return _found(engine, stages)


def _found(engine: TorchEngine, stages: Stages) -> Sharing:
    sparse = shortest_sparse(stages.config)
    lengths = [*LENGTHS, *([sparse + LENGTHS[0]] if sparse else [])]
    # Where nothing is padded, all of them are the same.
    lengths = lengths if stages.padding else lengths[:1]
    probes = [(one, length) for length in lengths if (one := stages.probe(length)) is not None]
    samples = [sample for sample, _ in probes]
    others = [_another(stages, *probe) for probe in probes]
    stages.sharing = Sharing.ALONE
    alone = [_alone(engine, one) for one in samples]
    _refuse_without_numbers(engine, samples, alone)
    for sharing in (Sharing.PADDED, Sharing.SAME_LENGTH):
        stages.sharing = sharing
        worst = max(
            (_difference(*pair) for pair in _pairs(engine, stages, samples, others, alone)),
            default=0,
        )
        log.info("%s: differs by %.1e", sharing, worst)
        if worst <= (TOLERANCE if engine.dtype == torch.float32 else HALF_TOLERANCE):
            return sharing
    return Sharing.ALONE


def _is_small(engine: TorchEngine) -> bool:
    """Whether its weights may lie in memory once more, in single precision."""
    return 4 * sum(one.numel() for one in engine.model.parameters()) <= MOST_BYTES


def _alone(engine: TorchEngine, sample: Sample) -> Output:
    try:
        return engine.forward([sample])[0]
    except MemoryError:
        raise
    except Exception as error:
        log.exception("probe failed")
        shapes = ", ".join(
            f"{name} {tuple(value.shape)}" for name, value in sample.features.items()
        )
        raise UnfitError(f"the model fails on an input of the shape {shapes}: {error}") from error


def _refuse_without_numbers(
    engine: TorchEngine, samples: Sequence[Sample], outputs: Sequence[Output]
) -> None:
    """Raise `UnfitError` if every probe has a NaN in what the model made of it."""
    lacking = [_without_numbers(*pair) for pair in zip(samples, outputs, strict=True)]
    if not lacking or not all(lacking):
        return
    cause = "Its weights hold NaN or infinity: save it with sound weights"
    if engine.dtype != torch.float32:
        cause += ". Or they are too large for this dtype: deploy it with 'dtype': 'float32'"
    raise UnfitError(
        f"the model gives no numbers (NaN) in {', '.join(lacking[0])}, computed in "
        f"{str(engine.dtype).removeprefix('torch.')}. {cause}"
    )


def _without_numbers(sample: Sample, output: Output) -> list[str]:
    """The names of the model's outputs that hold a NaN."""
    given = {*sample.features, *sample.extras}
    floats = (
        (name, value)
        for name, value in output.items()
        if name not in given and torch.is_tensor(value) and value.is_floating_point()
    )
    return [name for name, value in floats if bool(value.isnan().any())]


def _pairs(
    engine: TorchEngine,
    stages: Stages,
    samples: Sequence[Sample],
    others: Sequence[Sample],
    alone: Sequence[Output],
) -> Iterator[tuple[Output, Output]]:
    """What samples give as they may be run now, beside what each gives alone and as it is."""
    for sample, other, known in zip(samples, others, alone, strict=True):
        yield engine.forward([sample, other])[0], known
    if stages.sharing is Sharing.PADDED and stages.padding:
        yield from zip(engine.forward(samples), alone, strict=True)
        for sample, known in zip(samples, alone, strict=True):
            yield engine.forward([sample])[0], known


def _another(stages: Stages, sample: Sample, length: int) -> Sample:
    """One of the same shape that says something else."""
    # What the model's own processor makes is in order: a feature may hold more than an input's
    # contents, such as the place of each patch, or what parts two texts.
    other = stages.probe(length, 1)
    if other is not None and _shapes(other) == _shapes(sample):
        return other
    features = {
        name: value.flip(-1) if name == "input_ids" or value.is_floating_point() else value
        for name, value in sample.features.items()
    }
    return dataclasses.replace(sample, features=features)


def _shapes(sample: Sample) -> tuple[Hashable, ...]:
    return sample.call, *sorted((name, one.shape) for name, one in sample.features.items())


def _difference(output: Output, known: Output) -> float:
    """Between two outputs of a sample, by what the model gave in the same shape in both: what was
    padded and is not cut off, nobody reads.
    """
    names = [
        name
        for name, value in known.items()
        if torch.is_tensor(value)
        and torch.is_tensor(output[name])
        and value.shape == output[name].shape
    ]
    return difference({one: output[one] for one in names}, {one: known[one] for one in names})
