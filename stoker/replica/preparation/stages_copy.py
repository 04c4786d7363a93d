"""Copies of a model's stages for other processes: all except the model itself.

Stages can be copied if they can be pickled, and if preparing inputs does not change them.
"""

import hashlib
import io
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, cast

import numpy
import torch

from stoker.models.stages.base import Sample, Stages
from stoker.replica.preparation.payload import NotTransferableError, dumped


class ModelStandIn:
    """Attributes of a model that preparation reads. Others are missing on purpose."""

    def __init__(self, config: Any, dtype: Any, device: Any) -> None:
        self.config = config
        self.dtype = dtype
        self.device = device


class StagesCopy:
    """Copy of stages, and whether their state stayed the same since the last copy."""

    def __init__(self) -> None:
        self._digest: bytes = b""
        self.attachments = -1
        """Value of `Stages.attachments` for the last copy."""

    def take(self, stages: Stages) -> tuple[bytes, bool]:
        """Returns pickled stages, and True if they equal the previous copy.

        Must be called on the thread that prepares inputs. Raises `NotTransferableError`.
        """
        pickled = dumped(_StagesPickler, stages)
        digest: bytes = hashlib.sha256(pickled).digest()
        is_same = digest == self._digest and stages.attachments == self.attachments
        self._digest, self.attachments = digest, stages.attachments
        return pickled, is_same


class _StagesPickler(pickle.Pickler):
    def __init__(self, output: io.BytesIO) -> None:
        super().__init__(output, protocol=5)

    def reducer_override(self, obj: Any, /) -> Any:
        if isinstance(obj, torch.nn.Module):
            facts = (getattr(obj, name, None) for name in ("config", "dtype", "device"))
            return ModelStandIn, tuple(facts)
        if isinstance(obj, torch.Tensor) and obj.device.type != "cpu":
            raise NotTransferableError(f"a tensor on {obj.device}")
        return NotImplemented


def same_samples(first: Sequence[Sample], second: Sequence[Sample]) -> bool:
    """Returns True if both lists hold the same values, bit for bit."""
    try:
        return _same(list(first), list(second))
    except Exception:
        # Values of unknown classes may not be comparable.
        return False


def _same(first: Any, second: Any) -> bool:
    if type(first) is not type(second):
        return False
    if isinstance(first, torch.Tensor | numpy.ndarray):
        return _facts(first) == _facts(second)
    first_parts, second_parts = _parts(first), _parts(second)
    if first_parts is None or second_parts is None:
        # NaN is not equal to itself, but its text is.
        return bool(first == second) or (isinstance(first, float) and repr(first) == repr(second))
    return len(first_parts) == len(second_parts) and all(map(_same, first_parts, second_parts))


def _facts(array: Any) -> tuple[Any, ...]:
    if isinstance(array, torch.Tensor):
        content: Any = array.contiguous().reshape(-1).view(torch.uint8).numpy()
        return array.dtype, array.size(), array.stride(), content.tobytes()
    return array.dtype, array.shape, array.tobytes()


def _parts(value: Any) -> Sequence[Any] | None:
    """Returns the values that an object consists of. None if it is a value itself."""
    if isinstance(value, Mapping):
        mapping = cast("Mapping[Any, Any]", value)
        return [*mapping, *mapping.values()]
    if isinstance(value, list | tuple):
        return cast("Sequence[Any]", value)
    if is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, field.name) for field in fields(value)]
    return None
