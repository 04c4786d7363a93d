"""Finds a model's weight files that a loader would load, and checks that they are complete."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from stoker.inspection.documents import Json
from stoker.inspection.failure import FailureCode, InspectionError, quoted
from stoker.inspection.safetensors import Header
from stoker.models.stages.speech.folder import WEIGHTS as SPEECH_WEIGHTS

MODULES = "modules.json"

_MAX_SHOWN = 3


@dataclass(frozen=True)
class WeightNames:
    """A library's names for the weights that it saves, as in `model` + `.safetensors`."""

    stem: str

    @property
    def whole(self) -> str:
        return f"{self.stem}.safetensors"

    @property
    def index(self) -> str:
        return f"{self.stem}.safetensors.index.json"

    def shard(self, path: str) -> re.Match[str] | None:
        return re.fullmatch(rf"({self.stem}-)([0-9]{{5}})(-of-)([0-9]{{5}})(\.safetensors)", path)


TRANSFORMERS = WeightNames("model")
DIFFUSERS = WeightNames("diffusion_pytorch_model")


@dataclass(frozen=True)
class Weights:
    """Weights that are loaded.

    Attributes:
        parameters: the number of values that they contain.
        weight_bytes: their size in bytes.
        dtype: the dtype of most of those bytes.
        warnings: oddities of the files that are not errors.
    """

    parameters: int
    weight_bytes: int
    dtype: str
    warnings: tuple[str, ...]


def find_weights(headers: Mapping[str, Header], documents: Mapping[str, Json]) -> Weights | None:
    """Returns the safetensors weights of a model: `model.safetensors`, or the shards that the index
    names.

    The total includes the `model.safetensors` of every folder that `modules.json` lists, as
    sentence-transformers keeps its dense layers there. It also includes additional files of a
    speech model. Other safetensors files are not loaded and cause a warning.

    Args:
        headers: the checked header of every safetensors file, by path.
        documents: the parsed JSON files, by path.

    Returns:
        The weights, or None if the model has none.

    Raises:
        InspectionError: `AMBIGUOUS_WEIGHTS`, `BAD_INDEX`, `MISSING_INDEX`, `MISSING_SHARD`, or
            `MISSING_WEIGHTS` if the files exist but hold no tensor or have the wrong name.
    """
    warnings: list[str] = []
    used = find_files(headers, documents, TRANSFORMERS, warnings)
    if not used:
        return None
    used |= _module_files(headers, documents.get(MODULES))
    used |= headers.keys() & {*SPEECH_WEIGHTS}
    warnings.extend(
        f"{path} is not loaded: it is neither {TRANSFORMERS.whole} nor named by "
        f"{TRANSFORMERS.index}."
        for path in sorted(headers.keys() - used)
    )
    return summed([headers[path] for path in sorted(used)], tuple(warnings))


def find_files(
    headers: Mapping[str, Header],
    documents: Mapping[str, Json],
    names: WeightNames,
    warnings: list[str],
) -> set[str]:
    """Returns the weight files of one folder that a loader would load.

    Args:
        headers: the checked headers of its safetensors files, by path below it.
        documents: its parsed JSON files.
        names: the loader's names for the weights.
        warnings: a list to which oddities that are not errors are added.

    Raises:
        InspectionError: as `find_weights`.
    """
    used = _main_files(headers, documents, names, warnings)
    if not used:
        _refuse_misnamed(headers, names)
    return used


def _main_files(
    headers: Mapping[str, Header],
    documents: Mapping[str, Json],
    names: WeightNames,
    warnings: list[str],
) -> set[str]:
    if names.index in documents:
        shards = _indexed_files(headers, documents[names.index], names, warnings)
        if names.whole in headers and names.whole not in shards:
            raise InspectionError(
                FailureCode.AMBIGUOUS_WEIGHTS,
                f"The files contain the weights twice, as {names.whole} and as the shards of "
                f"{names.index}. Upload only one of the two.",
                names.whole,
            )
        return shards
    shards = {path for path in headers if names.shard(path)}
    if names.whole in headers:
        if shards:
            raise InspectionError(
                FailureCode.AMBIGUOUS_WEIGHTS,
                f"The files contain both shards ({_some(shards)}) and {names.whole}. "
                "Upload only one of the two.",
                names.whole,
            )
        return {names.whole}
    if shards:
        raise _missing_index(shards, names)
    return set()


def _missing_index(shards: set[str], names: WeightNames) -> InspectionError:
    missing = {names.index}
    match = names.shard(min(shards))
    # More shards than a set may have files are invalid and not worth listing.
    if match and int(match[4]) <= len(shards) + _MAX_SHOWN:
        numbers = range(1, int(match[4]) + 1)
        missing |= {f"{match[1]}{n:05}{match[3]}{match[4]}{match[5]}" for n in numbers} - shards
    return InspectionError(
        FailureCode.MISSING_INDEX,
        f"The shards ({_some(shards)}) are incomplete without "
        f"{', '.join(sorted(missing))}. Upload the missing files, too.",
        names.index,
    )


def _indexed_files(
    headers: Mapping[str, Header], index: Json, names: WeightNames, warnings: list[str]
) -> set[str]:
    """Returns the shards of an index. Each must hold exactly the tensors that the index assigns to
    it.
    """
    placed = _placed_tensors(index, names)
    for shard, tensors in placed.items():
        if shard not in headers:
            raise InspectionError(
                FailureCode.MISSING_SHARD,
                f"{names.index} assigns weights to {quoted(shard)}, which is missing. "
                "Upload it, too.",
                names.index,
            )
        stored = headers[shard].tensors.keys()
        if missing := tensors - stored:
            problem = f"assigns tensors to {shard} that are not in it: {_some(missing)}"
            raise _bad_index(names, problem)
        if extra := stored - tensors:
            raise _bad_index(names, f"does not mention tensors that {shard} holds: {_some(extra)}")
    if extra := {path for path in headers if names.shard(path)} - placed.keys():
        raise _bad_index(names, f"does not mention the shards {_some(extra)}")
    total = sum(headers[shard].data_bytes for shard in placed)
    claimed = _claimed_total(index)
    if claimed is not None and claimed != total:
        warnings.append(
            f"{names.index} states a total_size of {claimed} bytes; the shards hold {total}."
        )
    return set(placed)


def _placed_tensors(index: Json, names: WeightNames) -> dict[str, set[str]]:
    weight_map = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise _bad_index(names, "has no object 'weight_map' that maps tensors to files")
    placed: dict[str, set[str]] = {}
    for tensor, shard in weight_map.items():
        if not isinstance(shard, str):
            raise _bad_index(names, f"does not give a file name for tensor {quoted(tensor)}")
        placed.setdefault(shard, set()).add(tensor)
    return placed


def _claimed_total(index: Json) -> int | None:
    metadata = index.get("metadata") if isinstance(index, dict) else None
    claimed = metadata.get("total_size") if isinstance(metadata, dict) else None
    return claimed if isinstance(claimed, int) else None


def _module_files(headers: Mapping[str, Header], modules: Json) -> set[str]:
    entries = modules if isinstance(modules, list) else []
    folders = [entry.get("path") for entry in entries if isinstance(entry, dict)]
    files = {
        f"{folder}/{TRANSFORMERS.whole}" for folder in folders if isinstance(folder, str) and folder
    }
    return files & headers.keys()


def _refuse_misnamed(headers: Mapping[str, Header], names: WeightNames) -> None:
    at_top = sorted(path for path in headers if PurePosixPath(path).name == path)
    if at_top:
        raise InspectionError(
            FailureCode.MISSING_WEIGHTS,
            f"{at_top[0]} would not be loaded. Rename the weights to {names.whole}.",
            at_top[0],
        )


def summed(headers: list[Header], warnings: tuple[str, ...]) -> Weights:
    """Returns the sum of weight files. Raises `InspectionError` (`MISSING_WEIGHTS`) if they are
    empty.
    """
    totals: dict[str, int] = {}
    for header in headers:
        for dtype, count in header.bytes_by_dtype().items():
            totals[dtype] = totals.get(dtype, 0) + count
    if not any(totals.values()):
        raise InspectionError(
            FailureCode.MISSING_WEIGHTS,
            "The weight files hold no numbers. Save the model with its weights and upload those.",
        )
    return Weights(
        parameters=sum(header.parameters for header in headers),
        weight_bytes=sum(header.data_bytes for header in headers),
        dtype=max(totals, key=lambda dtype: (totals[dtype], dtype)),
        warnings=warnings,
    )


def _bad_index(names: WeightNames, what: str) -> InspectionError:
    return InspectionError(
        FailureCode.BAD_INDEX,
        f"{names.index} {what}. Upload the index and the shards from the same save.",
        names.index,
    )


def _some(names: Iterable[str]) -> str:
    shown = sorted(names)
    rest = len(shown) - _MAX_SHOWN
    listed = ", ".join(quoted(name) for name in shown[:_MAX_SHOWN])
    return f"{listed} and {rest} more" if rest > 0 else listed
