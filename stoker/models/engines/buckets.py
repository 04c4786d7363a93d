"""Shapes of recorded passes: a batch is padded to the shape of its bucket, and its outputs are cut.

A recorded pass has fixed shapes. Buckets keep their number small.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from stoker.models.engines.transfers import Outputs
from stoker.models.stages.base import Stages
from stoker.models.stages.text import TextStages
from stoker.wire.protocol import Sharing

Batch = Mapping[str, torch.Tensor]

ROWS = (1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
LENGTHS = (16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
"""Sizes of buckets. Padding at most doubles a batch, which costs less than launching its kernels
one by one.
"""

_MOST_NAME_CHARS = 200


@dataclass(frozen=True)
class ShapeBucket:
    """Call and input shapes of a recorded pass."""

    call: Hashable
    shapes: tuple[tuple[str, torch.Size, torch.dtype], ...]
    """Name, shape and type of each input."""

    @property
    def form(self) -> Hashable:
        """Call and names of the inputs: buckets of one form differ only in their shapes."""
        return self.call, tuple(name for name, _, _ in self.shapes)

    @property
    def name(self) -> str:
        """Name for the model's owner, the same in every process."""
        shapes = (f"{name} {'x'.join(map(str, shape))}" for name, shape, _ in self.shapes)
        call = f"{self.call!r}: " if self.call else ""
        return ascii(call + ", ".join(shapes))[1:-1][:_MOST_NAME_CHARS]

    @property
    def elements(self) -> int:
        """Number of elements of all inputs."""
        return sum(shape.numel() for _, shape, _ in self.shapes)


class Buckets(Protocol):
    """Maps batches to buckets. Works on tensors of any device."""

    def bucket(self, call: Hashable, batch: Batch) -> ShapeBucket:
        """Returns the bucket of a batch."""
        ...

    def inputs(self, bucket: ShapeBucket, batch: Batch) -> dict[str, torch.Tensor]:
        """Returns new inputs of the bucket's shapes that hold the batch. All rows are valid."""
        ...

    def write(self, inputs: Batch, batch: Batch) -> None:
        """Writes another batch of the same bucket into the inputs."""
        ...

    def cut(self, outputs: Outputs, inputs: Batch, batch: Batch) -> Outputs:
        """Returns the batch's part of the outputs of a pass over the inputs."""
        ...


class PaddedBuckets:
    """Rounds rows and lengths up, as far as the model's `Sharing` allows. A batch without one row
    per sample, such as a packed one, gets a bucket of its exact shapes.
    """

    def __init__(self, stages: Stages) -> None:
        self._stages = stages

    def bucket(self, call: Hashable, batch: Batch) -> ShapeBucket:
        rows, lengths = self._dimensions(batch)
        shapes = {name: value.shape for name, value in batch.items()}
        if len(rows) == 1 and len(lengths) <= 1:
            size, length = self._sizes(rows.pop(), lengths.pop() if lengths else 0)
            shapes = {name: self._shape(name, value, size, length) for name, value in batch.items()}
        types = ((name, shape, batch[name].dtype) for name, shape in shapes.items())
        return ShapeBucket(call, tuple(types))

    def _dimensions(self, batch: Batch) -> tuple[set[int], set[int]]:
        """Returns the numbers of rows and the padded lengths of a batch's tensors."""
        rows = {value.shape[0] if value.dim() else 0 for value in batch.values()}
        lengths = {value.shape[1] for name, value in batch.items() if name in self._stages.padding}
        return rows, lengths

    def _sizes(self, rows: int, length: int) -> tuple[int, int]:
        sharing = self._stages.sharing
        if sharing is Sharing.ALONE:
            return rows, length
        if sharing is Sharing.SAME_LENGTH:
            return _rounded(rows, ROWS), length
        most = self._stages.max_tokens() if isinstance(self._stages, TextStages) else length
        # A longer row would need positions that the model lacks.
        return _rounded(rows, ROWS), max(length, min(_rounded(length, LENGTHS), most))

    def _shape(self, name: str, value: torch.Tensor, rows: int, length: int) -> torch.Size:
        is_padded = name in self._stages.padding
        return torch.Size(
            [rows, length, *value.shape[2:]] if is_padded else [rows, *value.shape[1:]]
        )

    def inputs(self, bucket: ShapeBucket, batch: Batch) -> dict[str, torch.Tensor]:
        inputs = {
            name: batch[name].new_empty(shape, dtype=dtype) for name, shape, dtype in bucket.shapes
        }
        self.write(inputs, batch)
        for name, value in inputs.items():
            if value.shape == batch[name].shape:
                continue
            # Rows without a sample must hold valid values. In later batches, they keep the values
            # of an earlier sample.
            value[batch[name].shape[0] :] = value[:1].clone()
        return inputs

    def write(self, inputs: Batch, batch: Batch) -> None:
        for name, value in batch.items():
            if value.shape == inputs[name].shape:
                inputs[name].copy_(value)
                continue
            rows = inputs[name][: value.shape[0]]
            if name not in self._stages.padding or value.shape == rows.shape:
                rows.copy_(value)
                continue
            positions, padded = self._places(value.shape[1], rows.shape[1])
            rows[:, positions] = value
            rows[:, padded] = self._stages.padding[name]

    def _places(self, length: int, whole: int) -> tuple[slice, slice]:
        """Returns the positions of tokens and of padding in a row."""
        if self._stages.padding_side == "right":
            return slice(0, length), slice(length, whole)
        return slice(whole - length, whole), slice(0, whole - length)

    def cut(self, outputs: Outputs, inputs: Batch, batch: Batch) -> Outputs:
        if all(value.shape == inputs[name].shape for name, value in batch.items()):
            return outputs
        ((rows,), lengths), ((whole_rows,), whole_lengths) = map(self._dimensions, (batch, inputs))
        positions, _ = self._places(max(lengths, default=0), max(whole_lengths, default=0))

        def part(name: str, value: Any) -> Any:
            if not (isinstance(value, torch.Tensor) and value.dim()):
                return value
            if value.shape[0] != whole_rows:
                return value
            return value[:rows, positions] if name in self._stages.per_token else value[:rows]

        return {name: part(name, value) for name, value in outputs.items()}


def _rounded(size: int, steps: Sequence[int]) -> int:
    """Returns the smallest step that holds a size, or the size if none does."""
    return next((step for step in steps if step >= size), size)
