"""How samples form a batch, and how the batch's outputs are divided among them."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch

from stoker.models.engines.packing import (
    PackedShape,
    bucketed,
    bucketed_for_gpu,
    packed_inputs,
)
from stoker.models.stages.base import Sample, Stages
from stoker.models.stages.text import TextStages
from stoker.wire.protocol import Sharing


class BatchLayout(Protocol):
    """Form of a batch. Works on the CPU: engines move batches to their device."""

    def batch(self, samples: Sequence[Sample]) -> dict[str, torch.Tensor]:
        """Returns the model's inputs for the samples, on the CPU."""
        ...

    def rows(
        self, samples: Sequence[Sample], outputs: Mapping[str, Any]
    ) -> Sequence[Mapping[str, Any]]:
        """Returns each sample's part of the model's outputs. The outputs are on the CPU."""
        ...


class PaddedLayout:
    """Layout with one row per sample. Shorter samples are padded to the length of the longest."""

    def __init__(self, stages: Stages) -> None:
        self._stages = stages

    def batch(self, samples: Sequence[Sample]) -> dict[str, torch.Tensor]:
        return self._padded_batch(
            samples, self._stages.padded_length(max(map(self._stages.length, samples)))
        )

    def _padded_batch(self, samples: Sequence[Sample], length: int) -> dict[str, torch.Tensor]:
        return {
            name: torch.cat([self._padded(name, sample, length) for sample in samples])
            for name in samples[0].features
        }

    def rows(
        self, samples: Sequence[Sample], outputs: Mapping[str, Any]
    ) -> Sequence[Mapping[str, Any]]:
        lengths = [self._stages.length(sample) for sample in samples]
        padded = self._stages.padded_length(max(lengths))
        return [
            self._row(outputs, row, self._positions(length, padded), len(samples))
            for row, length in enumerate(lengths)
        ]

    def _padded(self, name: str, sample: Sample, length: int) -> torch.Tensor:
        value = sample.features[name]
        if name not in self._stages.padding or value.shape[1] == length:
            return value
        missing = length - value.shape[1]
        sides = (0, missing) if self._stages.padding_side == "right" else (missing, 0)
        # `pad` counts dimensions from the last one.
        behind = (0, 0) * (value.dim() - 2)
        return torch.nn.functional.pad(value, (*behind, *sides), value=self._stages.padding[name])

    def _positions(self, length: int, padded: int) -> slice:
        """Returns the positions of a sample's tokens in its row."""
        is_right = self._stages.padding_side == "right"
        return slice(0, length) if is_right else slice(padded - length, padded)

    def _row(
        self, outputs: Mapping[str, Any], row: int, positions: slice, size: int
    ) -> Mapping[str, Any]:
        """Returns the outputs of one row, without the padded positions."""
        sample_outputs: dict[str, Any] = {}
        for name, value in outputs.items():
            if torch.is_tensor(value) and value.dim() and value.shape[0] == size:
                share = value[row : row + 1]
                is_padded = name in self._stages.per_token
                sample_outputs[name] = share[:, positions] if is_padded else share
            else:
                sample_outputs[name] = value
        return sample_outputs


class PackedLayout(PaddedLayout):
    """Padded layout that adds the inputs of a `TokenPacking` if samples are shared as `PACKED`.

    Outputs of a packed batch that have a row for each token are packed, too.
    """

    def __init__(self, stages: Stages, device: torch.device) -> None:
        super().__init__(stages)
        self._is_on_gpu = device.type == "cuda"

    def batch(self, samples: Sequence[Sample]) -> dict[str, torch.Tensor]:
        shape = self._shape(samples)
        if shape is None:
            return super().batch(samples)
        # The last rows are dummies. Copies of a sample are valid rows.
        dummies = [samples[0]] * (shape.rows - len(samples))
        padded = self._padded_batch([*samples, *dummies], shape.width)
        return padded | packed_inputs(self._lengths(samples), shape, self._stages.padding_side)

    def rows(
        self, samples: Sequence[Sample], outputs: Mapping[str, Any]
    ) -> Sequence[Mapping[str, Any]]:
        shape = self._shape(samples)
        if shape is None:
            return super().rows(samples, outputs)
        per_token = self._stages.per_token
        ends = itertools.accumulate(self._lengths(samples))
        return [
            {
                name: _share(value, row, slice(end - length, end), shape.rows, name in per_token)
                for name, value in outputs.items()
            }
            for row, (length, end) in enumerate(zip(self._lengths(samples), ends, strict=True))
        ]

    def _lengths(self, samples: Sequence[Sample]) -> list[int]:
        return [self._stages.length(sample) for sample in samples]

    def _shape(self, samples: Sequence[Sample]) -> PackedShape | None:
        """Returns the shape of a packed batch. None for a batch that is padded."""
        stages = self._stages
        # Packed attention ignores the mask.
        if stages.sharing is not Sharing.PACKED or stages.hides_tokens:
            return None
        lengths = self._lengths(samples)
        width = stages.padded_length(max(lengths))
        if not self._is_on_gpu:
            return bucketed(lengths, width)
        most = stages.max_tokens() if isinstance(stages, TextStages) else width
        return bucketed_for_gpu(lengths, width, most)


def _share(value: Any, row: int, tokens: slice, rows: int, is_per_token: bool) -> Any:
    """Returns the part of an output of a packed batch that belongs to one sample."""
    if not torch.is_tensor(value) or not value.dim():
        return value
    if is_per_token and value.shape[0] == 1:
        return value[:, tokens]
    return value[row : row + 1] if value.shape[0] == rows else value
