"""Chooses the files of a hub's repository to fetch: the loadable ones and the repository's
documents.
"""

import re
from collections.abc import Sequence
from pathlib import PurePosixPath

from stoker.base.errors import InvalidRequestError
from stoker.client.model_files import (
    GGUF,
    PICKLED,
    PIPELINE,
    SAFETENSORS,
    why_folder_left_out,
    why_left_out,
    why_spare,
)
from stoker.inspection import InspectionError, validate_path
from stoker.inspection.weights import TRANSFORMERS
from stoker.registry.hub.client import HubFile

_OTHER_FORMS = frozenset({"onnx", "openvino", "original", "coreml", "metal", "runs", "logs"})
"""Folders that hold the same model in formats that transformers does not load."""
_SHOWN = 20


def chosen(files: Sequence[HubFile], gguf: str | None) -> list[HubFile]:
    """Returns the files to fetch, smallest first.

    Args:
        gguf: name of the GGUF file, or a part of its name such as `Q4_K_M`. None means safetensors,
            or the only GGUF file.

    Raises:
        InvalidRequestError: the repository has no servable weights, or several that match.
    """
    able = {file.path: file for file in files if _may_be_loaded(file.path)}
    selected = {path for path in able if not why_spare(path, able)}
    weights = [path for path in selected if path.endswith(SAFETENSORS)]
    if gguf is not None or not weights:
        selected -= {path for path in selected if path.endswith((SAFETENSORS, GGUF, ".index.json"))}
        selected.add(_one_gguf(sorted(path for path in able if path.endswith(GGUF)), files, gguf))
    else:
        selected = {path for path in selected if not path.endswith(GGUF)}
        if PIPELINE not in able:
            selected = _of_transformers(selected)
    return sorted((able[path] for path in selected), key=lambda file: (file.size, file.path))


def _may_be_loaded(path: str) -> bool:
    *folders, _ = path.split("/")
    if why_left_out(path) or any(why_folder_left_out(folder) for folder in folders):
        return False
    try:
        validate_path(path)
    except InspectionError:
        return False
    return True


def _of_transformers(paths: set[str]) -> set[str]:
    """Drops other formats of the same model, and weights that transformers would not load."""
    selected = {path for path in paths if PurePosixPath(path).parts[0].lower() not in _OTHER_FORMS}
    at_top = {path for path in selected if "/" not in path}
    shards = {path for path in at_top if TRANSFORMERS.shard(path)}
    if TRANSFORMERS.whole in at_top:
        selected -= shards | {TRANSFORMERS.index}
        loaded = {TRANSFORMERS.whole}
    elif shards:
        loaded = shards
    else:
        # Inspection reports the problem with these files.
        return selected
    unused_weights = {path for path in at_top if path.endswith(SAFETENSORS)} - loaded
    indexes = {path for path in at_top if path.endswith(".index.json")} - {TRANSFORMERS.index}
    return selected - unused_weights - indexes


def _one_gguf(paths: Sequence[str], files: Sequence[HubFile], wanted: str | None) -> str:
    if not paths:
        raise _no_weights(files)
    models = [path for path in paths if "mmproj" not in path.lower()]
    matches = [path for path in models if _is_meant(path, wanted)]
    if len(matches) == 1:
        return matches[0]
    shown = ", ".join(models[:_SHOWN]) + (", …" if len(models) > _SHOWN else "")
    issue = (
        "has several GGUF files"
        if wanted is None
        else f"has {len(matches)} GGUF files that match '{wanted}'"
    )
    raise InvalidRequestError(
        f"The repository {issue}. Name one in 'gguf' by its file name or a part of "
        f"it, such as 'Q4_K_M': {shown}.",
        param="gguf",
    )


def _is_meant(path: str, wanted: str | None) -> bool:
    if wanted is None or path == wanted:
        return True
    # Match whole words only: Q4_K does not match Q4_K_M.
    parts = re.split(r"[-./]", path.lower())
    return wanted.lower() in parts


def _no_weights(files: Sequence[HubFile]) -> InvalidRequestError:
    if any(why_left_out(file.path) == PICKLED for file in files):
        return InvalidRequestError(
            "The repository has its weights only as pickles, which can run code and "
            "are never read here. Many repositories have a revision with safetensors, "
            "made by the hub's own converter (refs/pr/…). Name that revision, or "
            "convert the model and push it.",
            code="no_safe_weights",
            param="repo_id",
        )
    return InvalidRequestError(
        "The repository has no weights as safetensors or GGUF.",
        code="no_safe_weights",
        param="repo_id",
    )
