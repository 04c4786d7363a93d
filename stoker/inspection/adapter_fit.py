"""Whether an adapter fits a base: told from the headers of both.

Headers are as large as their owner likes: a worker process reads them (`Inspectors`).
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
"""Leading parts of a module's name that may be those of a model around the base."""


def load_adapter(adapter: Mapping[str, Path]) -> Lora:
    """Raises `InspectionError`, and `OSError`."""
    files = FileSet(Paths({name: adapter[name] for name in (CONFIG, WEIGHTS)}))
    header = read_header(files, WEIGHTS)
    found = find_adapter(files, {WEIGHTS: header}, {CONFIG: load_json(files, CONFIG)})
    if found is None:
        raise InspectionError(FailureCode.UNSUPPORTED_MODEL, "It is no adapter.")
    return found


def _shapes(reader: FileReader) -> dict[str, tuple[int, ...]]:
    """Of a model's tensors, by name."""
    files = FileSet(reader)
    names = [path for path in files.sizes if path.endswith(".safetensors") and "/" not in path]
    headers = (read_header(files, path) for path in names)
    return {name: one.shape for header in headers for name, one in header.tensors.items()}


def why_unfit(adapter: Lora, shapes: Mapping[str, tuple[int, ...]]) -> str | None:
    """Why an adapter's matrices cannot be added to these tensors; None: they can.

    Names are compared from their ends, as either model may be around the other one.
    """
    ends = {end: shape for name, shape in shapes.items() for end in _ends(name)}
    # A last layer that is the same as the embeddings is in no file of weights.
    modules = {
        name: one for name, one in adapter.modules.items() if name.split(".")[-1] not in _TIED
    }
    wanted = [f"{name}.weight" for name in modules] + [*adapter.saved]
    depth = next((one for one in range(_DEEPEST + 1) if _are_there(wanted, one, ends)), None)
    if depth is None:
        lost = next((name for name in wanted if name not in ends), wanted[0])
        return f"that has {lost[:120]!a}, which this one has not."
    for module, one in modules.items():
        shape = ends[_inner(f"{module}.weight", depth)]
        if shape not in ((one.outputs, one.inputs), (one.inputs, one.outputs)):
            return (
                f"its matrices of {module[:120]!a} are for {one.inputs} inputs and "
                f"{one.outputs} outputs, and this one's weights there are {[*shape]}."
            )
    for name, (_, given) in adapter.saved.items():
        if (shape := ends[_inner(name, depth)]) != tuple(given):
            return f"its own {name[:120]!a} is {[*given]}, and this one's {[*shape]}."
    return None


def _are_there(wanted: Iterable[str], depth: int, ends: Mapping[str, tuple[int, ...]]) -> bool:
    return all(_inner(name, depth) in ends for name in wanted)


def _inner(name: str, depth: int) -> str:
    return name.split(".", depth)[-1] if name.count(".") > depth else name


def _ends(name: str) -> Iterable[str]:
    parts = name.split(".")
    return (".".join(parts[start:]) for start in range(min(len(parts) - 1, _DEEPEST + 1)))


def why_other_base(adapter: Lora, base: Path) -> str | None:
    """Why matrices are for other modules, or sizes, than the base's; None: they are not.

    What its weights are called says nothing of a GGUF file: there the replica alone finds out.
    """
    shapes = _shapes(FolderReader(base))
    return why_unfit(adapter, shapes) if shapes else None
