"""How an adapter becomes a part of its base's weights: found out from the headers of both.

Headers are as large as their owner likes: a worker process reads them (`Inspectors`).
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
from stoker.models.adapters.merge_job import BYTES, Change, Job, Part, Tensor, Written

_DEEPEST = 3
"""Leading parts of a module's name that may be those of a model around the base."""
_TIED = frozenset({"embed_out", "lm_head"})
_TRANSPOSED = frozenset({"c_attn", "c_fc", "c_proj", "q_attn"})
_TRANSPOSED_OF = frozenset({"decision_transformer", "gpt2", "imagegpt", "openai-gpt"})
"""Kinds of models with layers of these names whose weights lie as (in, out)."""


class UnmergeableError(Exception):
    """An adapter that cannot be merged into a base; the message says why."""


@dataclass(frozen=True)
class _Stored:
    """A base's weights."""

    files: Mapping[str, Mapping[str, Part]]
    """By the files' names, and the tensors'."""
    model_type: str
    ends: dict[str, str | None] = field(default_factory=dict[str, str | None])
    """The ends of the tensors' names → their names; None where several end so."""

    def __post_init__(self) -> None:
        for name in self.parts:
            for depth in range(1, _DEEPEST + 1):
                if name.count(".") > depth:
                    end = name.split(".", depth)[-1]
                    self.ends[end] = None if end in self.ends else name
        # A whole name means itself, whatever others end with it.
        self.ends.update({name: name for name in self.parts})

    @property
    def parts(self) -> dict[str, Part]:
        return {name: part for one in self.files.values() for name, part in one.items()}


def why_unmergeable(adapter: Mapping[str, Path], base: Path) -> str | None:
    """Why an adapter cannot be merged into a base; None: it can. It reads headers only.

    Raises `InspectionError`, and `OSError`.
    """
    try:
        _changes(*_read(adapter, base))
    except UnmergeableError as error:
        return str(error)
    return None


def _read(adapter: Mapping[str, Path], base: Path) -> tuple[Lora, Mapping[str, Part], _Stored]:
    found = load_adapter(adapter)
    files = FileSet(Paths({WEIGHTS: adapter[WEIGHTS]}))
    own = _parts(files, WEIGHTS, adapter[WEIGHTS])
    stored = FileSet(FolderReader(base))
    names = [path for path in stored.sizes if path.endswith(".safetensors") and "/" not in path]
    if not names:
        raise UnmergeableError("it has no safetensors files in its folder to merge it into.")
    config = load_json(stored, "config.json") if "config.json" in stored else None
    kind = str(config.get("model_type", "")) if isinstance(config, dict) else ""
    parts = {name: _parts(stored, name, base / name) for name in sorted(names)}
    return found, own, _Stored(parts, kind)


def _parts(files: FileSet, name: str, path: Path) -> dict[str, Part]:
    (length,) = struct.unpack("<Q", files.head(name, LENGTH_BYTES))
    start = LENGTH_BYTES + length
    return {
        tensor: Part(str(path), start + one.begin, one.end - one.begin, one.dtype, one.shape)
        for tensor, one in read_header(files, name).tensors.items()
    }


@dataclass
class _Changed:
    value: Part
    change: Change = field(default_factory=Change)


def _changes(adapter: Lora, own: Mapping[str, Part], base: _Stored) -> dict[str, _Changed]:
    """The base's tensors that become others. Raises `UnmergeableError`."""
    replaced = {**adapter.copied, **adapter.saved}
    wanted = [f"{module}.weight" for module in adapter.modules] + [*adapter.saved]
    names = _names(wanted, base)
    found: dict[str, _Changed] = {}
    parts = base.parts
    for parameter, (tensor, _) in replaced.items():
        name = names.get(parameter) or base.ends.get(parameter)
        if name is None:
            if parameter.split(".")[-2] in _TIED:
                # It is the same as the embeddings.
                continue
            raise UnmergeableError(f"that has {parameter[:120]!a}, which this one has not.")
        if own[tensor].shape != parts[name].shape:
            raise UnmergeableError(
                f"its own {parameter[:120]!a} is {[*own[tensor].shape]}, and this one's "
                f"{[*parts[name].shape]}."
            )
        found[name] = _Changed(own[tensor])
    for module, one in adapter.modules.items():
        name = names[f"{module}.weight"]
        value = found[name].value if name in found else parts[name]
        magnitude = adapter.magnitudes.get(module)
        change = Change(
            own[one.down],
            own[one.up],
            one.scale,
            _is_transposed(adapter, module, value.shape, base.model_type),
            own[magnitude] if magnitude else None,
        )
        found[name] = _Changed(value, change)
        if added := adapter.added_biases.get(module):
            bias = f"{name.removesuffix('weight')}bias"
            if bias not in parts or parts[bias].shape != own[added].shape:
                raise UnmergeableError(f"that has a bias of {module[:120]!a}, this one has not.")
            before = found[bias].value if bias in found else parts[bias]
            found[bias] = _Changed(before, Change(scale=one.scale, added=own[added]))
    for name, one in found.items():
        if one.value.dtype not in BYTES or parts[name].dtype not in BYTES:
            raise UnmergeableError(
                f"this one's {name[:120]!a} is stored in {parts[name].dtype}: merged is into "
                f"{', '.join(BYTES)}."
            )
    return found


def _names(wanted: list[str], base: _Stored) -> dict[str, str]:
    """The base's names of what the adapter has something for: either model may be around the
    other one, and then all names begin otherwise."""
    for depth in range(_DEEPEST + 1):
        inner = {
            name: name.split(".", depth)[-1] if name.count(".") > depth else name for name in wanted
        }
        found = {name: base.ends.get(end) for name, end in inner.items()}
        names = {name: own for name, own in found.items() if own is not None}
        if len(names) == len(found):
            return names
    lost = next((name for name in wanted if not base.ends.get(name)), wanted[0])
    raise UnmergeableError(f"that has {lost[:120]!a}, which this one has not.")


def _is_transposed(adapter: Lora, module: str, shape: tuple[int, ...], kind: str) -> bool:
    """Whether a weight lies as (in, out). Raises `UnmergeableError` where it is of another size."""
    one = adapter.modules[module]
    if shape not in ((one.outputs, one.inputs), (one.inputs, one.outputs)):
        raise UnmergeableError(
            f"its matrices of {module[:120]!a} are for {one.inputs} inputs and {one.outputs} "
            f"outputs, and this one's weights there are {[*shape]}."
        )
    if one.inputs != one.outputs:
        return shape == (one.inputs, one.outputs)
    is_known = kind in _TRANSPOSED_OF and module.rsplit(".", maxsplit=1)[-1] in _TRANSPOSED
    if adapter.fan_in_fan_out and not is_known:
        raise UnmergeableError(f"which way the weights of {module[:120]!a} lie is not known.")
    return is_known


def plan(adapter: Mapping[str, Path], base: Path, building: Path, *, is_single: bool) -> Job:
    """Returns what is to be written into a folder.

    Args:
        is_single: whether changed weights are written in float32; else as the base's.

    Raises:
        UnmergeableError, InspectionError, OSError
    """
    found, own, stored = _read(adapter, base)
    changes = _changes(found, own, stored)
    files: list[Written] = []
    for file, parts in stored.files.items():
        tensors: list[Tensor] = []
        for name, part in parts.items():
            changed = changes.get(name)
            if changed is None:
                tensors.append(Tensor(name, part.dtype, part.shape, part.nbytes, part))
                continue
            dtype = "F32" if is_single else part.dtype
            size = part.nbytes // BYTES[part.dtype] * BYTES[dtype]
            tensors.append(Tensor(name, dtype, part.shape, size, changed.value, changed.change))
        files.append(Written(str(building / file), tensors))
    return Job(files)
