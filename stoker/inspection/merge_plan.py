"""Plans how to merge an adapter into its base's weights, from the headers of both.

The owner determines the size of headers, so a worker process reads them (`Inspectors`).
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from stoker.inspection.adapter_fit import load_adapter
from stoker.inspection.documents import load_json
from stoker.inspection.files import FileSet
from stoker.inspection.readers import FolderReader, Paths
from stoker.inspection.safetensors import LENGTH_BYTES, read_header
from stoker.models.adapters.lora import WEIGHTS, Lora
from stoker.models.adapters.merge_job import (
    BYTES,
    MergedTensor,
    MergeJob,
    TensorChange,
    TensorPosition,
    Written,
)

_DEEPEST = 3
"""Maximum number of leading parts of a module's name that may belong to a model that wraps the
base.
"""
_TIED = frozenset({"embed_out", "lm_head"})
_TRANSPOSED = frozenset({"c_attn", "c_fc", "c_proj", "q_attn"})
_TRANSPOSED_OF = frozenset({"decision_transformer", "gpt2", "imagegpt", "openai-gpt"})
"""Kinds of models in which layers of these names store weights as (in, out)."""


class UnmergeableError(Exception):
    """The adapter cannot be merged into the base. The message contains the reason."""


@dataclass(frozen=True)
class _Stored:
    """Weights of a base."""

    files: Mapping[str, Mapping[str, TensorPosition]]
    """Tensors by file name and tensor name."""
    model_type: str
    ends: dict[str, str | None] = field(default_factory=dict[str, str | None])
    """Maps the end of a tensor's name to the name. None means that several names have this end."""

    def __post_init__(self) -> None:
        for name in self.parts:
            for depth in range(1, _DEEPEST + 1):
                if name.count(".") > depth:
                    end = name.split(".", depth)[-1]
                    self.ends[end] = None if end in self.ends else name
        # A complete name refers to itself, even if other names end with it.
        self.ends.update({name: name for name in self.parts})

    @property
    def parts(self) -> dict[str, TensorPosition]:
        return {name: part for tensors in self.files.values() for name, part in tensors.items()}


def why_unmergeable(adapter: Mapping[str, Path], base: Path) -> str | None:
    """Returns why an adapter cannot be merged into a base, or None if it can. Reads headers only.

    Raises `InspectionError` and `OSError`.
    """
    try:
        _changes(*_read(adapter, base))
    except UnmergeableError as error:
        return str(error)
    return None


def _read(
    adapter: Mapping[str, Path], base: Path
) -> tuple[Lora, Mapping[str, TensorPosition], _Stored]:
    lora = load_adapter(adapter)
    files = FileSet(Paths({WEIGHTS: adapter[WEIGHTS]}))
    adapter_parts = _parts(files, WEIGHTS, adapter[WEIGHTS])
    stored = FileSet(FolderReader(base))
    names = [path for path in stored.sizes if path.endswith(".safetensors") and "/" not in path]
    if not names:
        raise UnmergeableError(
            "the base's folder has no safetensors files to merge the adapter into."
        )
    config = load_json(stored, "config.json") if "config.json" in stored else None
    kind = str(config.get("model_type", "")) if isinstance(config, dict) else ""
    parts = {name: _parts(stored, name, base / name) for name in sorted(names)}
    return lora, adapter_parts, _Stored(parts, kind)


def _parts(files: FileSet, name: str, path: Path) -> dict[str, TensorPosition]:
    (length,) = struct.unpack("<Q", files.head(name, LENGTH_BYTES))
    start = LENGTH_BYTES + length
    return {
        tensor: TensorPosition(
            str(path), start + item.begin, item.end - item.begin, item.dtype, item.shape
        )
        for tensor, item in read_header(files, name).tensors.items()
    }


@dataclass
class _Changed:
    value: TensorPosition
    change: TensorChange = field(default_factory=TensorChange)


def _changes(
    adapter: Lora, own: Mapping[str, TensorPosition], base: _Stored
) -> dict[str, _Changed]:
    """Returns the base's tensors that change. Raises `UnmergeableError`."""
    replaced = {**adapter.copied, **adapter.saved}
    weight_names = [f"{module}.weight" for module in adapter.modules] + [*adapter.saved]
    names = _names(weight_names, base)
    changes: dict[str, _Changed] = {}
    parts = base.parts
    for parameter, (tensor, _) in replaced.items():
        name = names.get(parameter) or base.ends.get(parameter)
        if name is None:
            if parameter.split(".")[-2] in _TIED:
                # The layer is tied to the embeddings.
                continue
            raise UnmergeableError(
                f"the adapter changes {parameter[:120]!a}, which the base lacks."
            )
        if own[tensor].shape != parts[name].shape:
            raise UnmergeableError(
                f"{parameter[:120]!a} is {[*own[tensor].shape]} in the adapter and "
                f"{[*parts[name].shape]} in the base."
            )
        changes[name] = _Changed(own[tensor])
    for module, item in adapter.modules.items():
        name = names[f"{module}.weight"]
        value = changes[name].value if name in changes else parts[name]
        magnitude = adapter.magnitudes.get(module)
        change = TensorChange(
            own[item.down],
            own[item.up],
            item.scale,
            _is_transposed(adapter, module, value.shape, base.model_type),
            own[magnitude] if magnitude else None,
        )
        changes[name] = _Changed(value, change)
        if added := adapter.added_biases.get(module):
            bias = f"{name.removesuffix('weight')}bias"
            if bias not in parts or parts[bias].shape != own[added].shape:
                raise UnmergeableError(
                    f"the adapter has a bias of {module[:120]!a}, which the base lacks."
                )
            before = changes[bias].value if bias in changes else parts[bias]
            changes[bias] = _Changed(before, TensorChange(scale=item.scale, added=own[added]))
    for name, item in changes.items():
        if item.value.dtype not in BYTES or parts[name].dtype not in BYTES:
            raise UnmergeableError(
                f"the base's {name[:120]!a} is stored in {parts[name].dtype}. Adapters are merged "
                f"only into {', '.join(BYTES)}."
            )
    return changes


def _names(wanted: list[str], base: _Stored) -> dict[str, str]:
    """Maps the adapter's names to the base's.

    Either model may wrap the other, in which case all names begin differently.
    """
    for depth in range(_DEEPEST + 1):
        inner = {
            name: name.split(".", depth)[-1] if name.count(".") > depth else name for name in wanted
        }
        matches = {name: base.ends.get(end) for name, end in inner.items()}
        names = {name: match for name, match in matches.items() if match is not None}
        if len(names) == len(matches):
            return names
    lost = next((name for name in wanted if not base.ends.get(name)), wanted[0])
    raise UnmergeableError(f"the adapter changes {lost[:120]!a}, which the base lacks.")


def _is_transposed(adapter: Lora, module: str, shape: tuple[int, ...], kind: str) -> bool:
    """Returns True if a weight is stored as (in, out). Raises `UnmergeableError` if its size
    differs.
    """
    target = adapter.modules[module]
    if shape not in ((target.outputs, target.inputs), (target.inputs, target.outputs)):
        raise UnmergeableError(
            f"the adapter's matrices of {module[:120]!a} are for {target.inputs} inputs and "
            f"{target.outputs} outputs, but the base's weights have the shape {[*shape]}."
        )
    if target.inputs != target.outputs:
        return shape == (target.inputs, target.outputs)
    is_known = kind in _TRANSPOSED_OF and module.rsplit(".", maxsplit=1)[-1] in _TRANSPOSED
    if adapter.fan_in_fan_out and not is_known:
        raise UnmergeableError(f"the orientation of the weights of {module[:120]!a} is unknown.")
    return is_known


def plan(adapter: Mapping[str, Path], base: Path, building: Path, *, is_single: bool) -> MergeJob:
    """Returns the files to write into a folder.

    Args:
        is_single: whether changed weights are written in float32 rather than in the base's dtype.

    Raises:
        UnmergeableError, InspectionError, OSError
    """
    lora, adapter_parts, stored = _read(adapter, base)
    changes = _changes(lora, adapter_parts, stored)
    files: list[Written] = []
    for file, parts in stored.files.items():
        tensors: list[MergedTensor] = []
        for name, part in parts.items():
            changed = changes.get(name)
            if changed is None:
                tensors.append(MergedTensor(name, part.dtype, part.shape, part.nbytes, part))
                continue
            dtype = "F32" if is_single else part.dtype
            size = part.nbytes // BYTES[part.dtype] * BYTES[dtype]
            tensors.append(
                MergedTensor(name, dtype, part.shape, size, changed.value, changed.change)
            )
        files.append(Written(str(building / file), tensors))
    return MergeJob(files)
