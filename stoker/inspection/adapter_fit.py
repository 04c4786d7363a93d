"""Checks from the headers of both whether an adapter fits a base.

The owner determines the size of headers, so a worker process reads them (`Inspectors`).
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

from stoker.inspection.adapter import find_adapter
from stoker.inspection.documents import load_json
from stoker.inspection.failure import FailureCode, InspectionError
from stoker.inspection.files import FileReader, FileSet
from stoker.inspection.readers import FolderReader, Paths
from stoker.inspection.safetensors import read_header
from stoker.models.adapters.lora import CONFIG, WEIGHTS, Lora

_TIED = frozenset({"embed_out", "lm_head"})
_DEEPEST = 3
"""Maximum number of leading parts of a module's name that may belong to a model that wraps the
base.
"""


def load_adapter(adapter: Mapping[str, Path]) -> Lora:
    """Loads an adapter. Raises `InspectionError` and `OSError`."""
    files = FileSet(Paths({name: adapter[name] for name in (CONFIG, WEIGHTS)}))
    header = read_header(files, WEIGHTS)
    lora = find_adapter(files, {WEIGHTS: header}, {CONFIG: load_json(files, CONFIG)})
    if lora is None:
        raise InspectionError(FailureCode.UNSUPPORTED_MODEL, "The files are not an adapter.")
    return lora


def _shapes(reader: FileReader) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of a model's tensors by name."""
    files = FileSet(reader)
    names = [path for path in files.sizes if path.endswith(".safetensors") and "/" not in path]
    headers = (read_header(files, path) for path in names)
    return {name: tensor.shape for header in headers for name, tensor in header.tensors.items()}


def why_unfit(adapter: Lora, shapes: Mapping[str, tuple[int, ...]]) -> str | None:
    """Returns why an adapter's matrices cannot be added to these tensors, or None if they can.

    Names are compared from their ends, as either model may wrap the other.
    """
    ends = {end: shape for name, shape in shapes.items() for end in _ends(name)}
    # A last layer that is tied to the embeddings is not stored in the weight files.
    modules = {
        name: item for name, item in adapter.modules.items() if name.split(".")[-1] not in _TIED
    }
    weight_names = [f"{name}.weight" for name in modules] + [*adapter.saved]
    depth = next(
        (item for item in range(_DEEPEST + 1) if _are_there(weight_names, item, ends)), None
    )
    if depth is None:
        lost = next((name for name in weight_names if name not in ends), weight_names[0])
        return f"the adapter changes {lost[:120]!a}, which the base lacks."
    for module, item in modules.items():
        shape = ends[_inner(f"{module}.weight", depth)]
        if shape not in ((item.outputs, item.inputs), (item.inputs, item.outputs)):
            return (
                f"the adapter's matrices of {module[:120]!a} are for {item.inputs} inputs and "
                f"{item.outputs} outputs, but the base's weights have the shape "
                f"{[*shape]}."
            )
    for name, (_, saved_shape) in adapter.saved.items():
        if (shape := ends[_inner(name, depth)]) != tuple(saved_shape):
            return f"{name[:120]!a} is {[*saved_shape]} in the adapter and {[*shape]} in the base."
    return None


def _are_there(wanted: Iterable[str], depth: int, ends: Mapping[str, tuple[int, ...]]) -> bool:
    return all(_inner(name, depth) in ends for name in wanted)


def _inner(name: str, depth: int) -> str:
    return name.split(".", depth)[-1] if name.count(".") > depth else name


def _ends(name: str) -> Iterable[str]:
    parts = name.split(".")
    return (".".join(parts[start:]) for start in range(min(len(parts) - 1, _DEEPEST + 1)))


def why_other_base(adapter: Lora, base: Path) -> str | None:
    """Returns why the matrices do not match the base's modules or sizes, or None if they do.

    The names of weights in a GGUF file reveal nothing, so only the replica can check such a base.
    """
    shapes = _shapes(FolderReader(base))
    return why_unfit(adapter, shapes) if shapes else None
