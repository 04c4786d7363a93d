"""Finds which samples may share a forward pass without changing any answer.

Most models give a sample the same result alone, padded, or batched with others. Some do not:
padding takes part in a Fourier transform, in landmarks or in a convolution. A list of names would
never be complete, so each model is probed once, before its first answer.
"""

import dataclasses
import logging
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any

import torch

from stoker.models.engines.interface import Engine
from stoker.models.engines.invalid_numbers import outputs_with_nan
from stoker.models.engines.packing import TokenPacking
from stoker.models.engines.probing import difference
from stoker.models.engines.stateless import shortest_sparse
from stoker.models.engines.torch import TorchEngine
from stoker.models.stages.base import Sample, Stages
from stoker.wire.protocol import Sharing

log = logging.getLogger(__name__)

Output = Mapping[str, Any]

LENGTHS = (5, 21, 50)
"""Lengths of the probes in tokens. None of them is a length that others are rounded up to."""
TOLERANCE, HALF_TOLERANCE = 2e-5, 3e-2
"""Maximum difference caused by other kernels, as a share of the largest output: in float32 and in
half precision.

If the limit is too low, a model loses throughput. If it is too high, answers change.
"""

_WINDOWS = ("window", "local_attention", "chunk")
"""Words in the names of configuration values that limit how far a token attends."""
_DOUBLINGS = 4
"""Maximum number of times that the probes are doubled to fill a packed batch."""
_LONGEST_WINDOW = 2048
"""Maximum attention window in tokens of a model that is tested for packing."""

MOST_BYTES = 512 << 20
"""Maximum bytes of weights that are read again to probe in single precision."""


class ModelUnfitError(ValueError):
    """The model cannot serve: it fails on a valid input."""


def find(engine: TorchEngine, stages: Stages) -> Sharing:
    """Returns which samples of a loaded model may share a pass. Leaves the stages with another
    setting.

    Raises `ModelUnfitError`.
    """
    stages.check(lambda sample: _alone(engine, sample))
    sharing = _found(engine, stages)
    if sharing.is_padded or engine.dtype == torch.float32 or not _is_small(engine):
        return sharing
    # The difference may be only rounding: a score near zero is computed from numbers that are not
    # near zero. The effect of padding is the same in any precision, and shows in the finest.
    with engine.in_single():
        return _found(engine, stages)


def restored(engine: Engine, sharing: Sharing) -> Sharing:
    """Returns a stored sharing, or the closest one that this engine supports."""
    packs = isinstance(engine, TorchEngine) and engine.can_pack
    return Sharing.PADDED if sharing is Sharing.PACKED and not packs else sharing


def _found(engine: TorchEngine, stages: Stages) -> Sharing:
    sparse = shortest_sparse(stages.config)
    lengths = [*LENGTHS, *([sparse + LENGTHS[0]] if sparse else [])]
    # Without padding, all samples have the same length.
    lengths = lengths if stages.padding else lengths[:1]
    probes = [
        (probed, length) for length in lengths if (probed := stages.probe(length)) is not None
    ]
    samples = [sample for sample, _ in probes]
    counterparts = [_another(stages, *probe) for probe in probes]
    stages.sharing = Sharing.ALONE
    alone = [_alone(engine, probed) for probed in samples]
    _refuse_without_numbers(engine, samples, alone)
    for sharing in (Sharing.PADDED, Sharing.SAME_LENGTH):
        stages.sharing = sharing
        worst = max(
            (_difference(*pair) for pair in _pairs(engine, stages, samples, counterparts, alone)),
            default=0,
        )
        log.info("%s: differs by %.1e", sharing, worst)
        if worst <= _tolerance(engine):
            if sharing is Sharing.PADDED and _packs(
                engine, stages, [*samples, *counterparts], alone
            ):
                return Sharing.PACKED
            return sharing
    return Sharing.ALONE


def _tolerance(engine: TorchEngine) -> float:
    return TOLERANCE if engine.dtype == torch.float32 else HALF_TOLERANCE


def _packs(
    engine: TorchEngine, stages: Stages, samples: Sequence[Sample], known: Sequence[Output]
) -> bool:
    """Returns True if samples in a packed row have the same outputs as alone.

    Args:
        known: outputs of the first samples, each computed alone.
    """
    if not engine.can_pack or not stages.padding:
        return False
    windowed = _windowed(stages)
    if windowed is None:
        return False
    members = [*samples, *windowed]
    stages.sharing = Sharing.ALONE
    alone = [*known, *(_alone(engine, member) for member in members[len(known) :])]
    stages.sharing = Sharing.PACKED
    for _ in range(_DOUBLINGS):
        if TokenPacking.of(engine.batch(members)):
            break
        # A GPU packs only large batches.
        members, alone = members * 2, alone * 2
    else:
        return False
    worst = 0.0
    for order in (1, -1):
        try:
            outputs = engine.forward(members[::order])
        except MemoryError:
            raise
        except Exception as error:
            log.info("packed: not possible: %s", error)
            return False
        worst = max(worst, *map(_difference, outputs[::order], alone))
    log.info("packed: differs by %.1e", worst)
    return worst <= _tolerance(engine)


def _windowed(stages: Stages) -> list[Sample] | None:
    """Returns a sample that is longer than each window of the model's attention.

    None if a window is too long to be tested.
    """
    config: Any = stages.config.get_text_config()
    values = ((name, getattr(config, name)) for name in config.to_dict())
    windows: set[int] = {
        value
        for name, value in values
        if any(word in name for word in _WINDOWS) and type(value) is int and value > 0
    }
    samples: list[Sample] = []
    for window in sorted(windows):
        sample = stages.probe(window + LENGTHS[0])
        if sample is None or stages.length(sample) <= window:
            # The model accepts no text that is longer than its window.
            break
        if window > _LONGEST_WINDOW:
            return None
        samples.append(sample)
    return samples


def _is_small(engine: TorchEngine) -> bool:
    """True if the weights may have a second copy in memory, in single precision."""
    return 4 * sum(parameter.numel() for parameter in engine.model.parameters()) <= MOST_BYTES


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
        raise ModelUnfitError(
            f"the model fails on an input of the shape {shapes}: {error}"
        ) from error


def _refuse_without_numbers(
    engine: TorchEngine, samples: Sequence[Sample], outputs: Sequence[Output]
) -> None:
    """Raises `ModelUnfitError` if every probe's output contains a NaN."""
    lacking = [outputs_with_nan(*pair) for pair in zip(samples, outputs, strict=True)]
    if not lacking or not all(lacking):
        return
    cause = "Its weights contain NaN or infinity: save the model with valid weights"
    if engine.dtype != torch.float32:
        cause += ". Or the weights exceed this dtype's range: deploy with 'dtype': 'float32'"
    raise ModelUnfitError(
        f"the model returns NaN in {', '.join(lacking[0])}, computed in "
        f"{str(engine.dtype).removeprefix('torch.')}. {cause}"
    )


def _pairs(
    engine: TorchEngine,
    stages: Stages,
    samples: Sequence[Sample],
    others: Sequence[Sample],
    alone: Sequence[Output],
) -> Iterator[tuple[Output, Output]]:
    """Yields each sample's output under the current sharing with its output alone and unpadded."""
    for sample, other, known in zip(samples, others, alone, strict=True):
        yield engine.forward([sample, other])[0], known
    if stages.sharing.is_padded and stages.padding:
        yield from zip(engine.forward(samples), alone, strict=True)
        for sample, known in zip(samples, alone, strict=True):
            yield engine.forward([sample])[0], known


def _another(stages: Stages, sample: Sample, length: int) -> Sample:
    """Returns a sample of the same shape with other content."""
    # The output of the model's own processor is valid. A feature may hold more than an input's
    # contents, such as the position of each patch, or the separator of two texts.
    other = stages.probe(length, 1)
    if other is not None and _shapes(other) == _shapes(sample):
        return other
    features = {
        name: value.flip(-1) if name == "input_ids" or value.is_floating_point() else value
        for name, value in sample.features.items()
    }
    return dataclasses.replace(sample, features=features)


def _shapes(sample: Sample) -> tuple[Hashable, ...]:
    return sample.call, *sorted((name, value.shape) for name, value in sample.features.items())


def _difference(output: Output, known: Output) -> float:
    """Returns the difference of two outputs of a sample, over values with the same shape in both.

    Other values contain padding that is not cut off, which no caller reads.
    """
    names = [
        name
        for name, value in known.items()
        if torch.is_tensor(value)
        and torch.is_tensor(output[name])
        and value.shape == output[name].shape
    ]
    return difference({key: output[key] for key in names}, {key: known[key] for key in names})
