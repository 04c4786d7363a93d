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
    SAFETENSORS,
    WEIGHT_SUFFIXES,
    spare,
    why_left_out,
)
from stoker.inspection import InspectionError, validate_path
from stoker.registry.hub.client import HubFile

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
    selected = able.keys() - spare(able)
    if gguf is not None or not any(_suffix(path) == SAFETENSORS for path in selected):
        selected = {path for path in selected if not _is_weights_or_index(path)}
        selected.add(_one_gguf(sorted(path for path in able if _suffix(path) == GGUF), files, gguf))
    return sorted((able[path] for path in selected), key=lambda file: (file.size, file.path))


def _may_be_loaded(path: str) -> bool:
    try:
        validate_path(path)
    except InspectionError:
        return False
    return why_left_out(path) is None


def _suffix(path: str) -> str:
    return PurePosixPath(path).suffix.lower()


def _is_weights_or_index(path: str) -> bool:
    return _suffix(path) in WEIGHT_SUFFIXES or path.lower().endswith(".index.json")


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
