"""Selects the files of a model folder to push, and explains why others are skipped."""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, cast

from .errors import StokerError
from .model_files import (
    ADAPTER,
    GGUF,
    INDEX_SUFFIX,
    PICKLED,
    PIPELINE,
    WEIGHT_SUFFIXES,
    spare,
    why_folder_left_out,
    why_left_out,
)

LFS_START = b"version https://git-lfs"
CONFIGS = ("config.json", PIPELINE, ADAPTER)

CONVERSION = """\
Save the model as safetensors and push the new folder:
  from transformers import AutoModel  # or the class that config.json names
  AutoModel.from_pretrained("DIR").save_pretrained("NEW_DIR")"""


@dataclass(frozen=True)
class LocalFile:
    """A file to push. `path` is its path in the artifact, with forward slashes."""

    path: str
    source: Path
    size: int
    modified_ns: int

    def has_changed(self) -> bool:
        stat = self.source.stat()
        return (stat.st_size, stat.st_mtime_ns) != (self.size, self.modified_ns)


@dataclass(frozen=True)
class LeftOut:
    path: str
    reason: str
    size: int = 0


@dataclass(frozen=True)
class Selection:
    files: tuple[LocalFile, ...]
    left_out: tuple[LeftOut, ...]

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


def default_name(source: Path) -> str:
    """Returns a name for a model. For a Hugging Face cache folder, the repository ID."""
    if source.is_file():
        return source.stem
    resolved = source.resolve()
    repository = resolved.parent.parent.name
    if resolved.parent.name == "snapshots" and repository.startswith("models--"):
        return repository.removeprefix("models--").replace("--", "/")
    return resolved.name


def select(source: Path) -> Selection:
    """Selects the model files of a folder, smallest first, or a single GGUF file.

    Raises `StokerError` if they are not a complete model: only pickled weights, no weights, missing
    shards or configuration, or Git LFS pointers.
    """
    if source.is_file():
        return _alone(source)
    folder = source
    files: list[LocalFile] = []
    left_out: list[LeftOut] = []
    allowed = _roots(folder)
    entries = {entry.relative_to(folder).as_posix(): entry for entry in _walk(folder)}
    reasons = {path: _reason(entry, path, allowed) for path, entry in entries.items()}
    reasons |= spare(path for path, reason in reasons.items() if reason is None)
    for path, entry in entries.items():
        if reason := reasons[path]:
            left_out.append(LeftOut(path, reason, _size(entry)))
        else:
            stat = entry.stat()
            files.append(LocalFile(path, entry, stat.st_size, stat.st_mtime_ns))
    # Small files first, so that a wrong configuration fails before gigabytes are sent.
    files.sort(key=lambda file: (file.size, file.path))
    selection = Selection(tuple(files), tuple(sorted(left_out, key=lambda item: item.path)))
    _refuse_incomplete(folder, selection)
    return selection


def _alone(source: Path) -> Selection:
    if source.suffix.lower() != GGUF:
        raise StokerError(
            f"{source} is neither a folder nor a GGUF file.",
            hint="Push the folder that contains the model.",
        )
    stat = source.stat()
    selection = Selection((LocalFile(source.name, source, stat.st_size, stat.st_mtime_ns),), ())
    _refuse_incomplete(source.parent, selection)
    return selection


def _walk(folder: Path) -> Iterator[Path]:
    """Yields every file. Skipped folders are yielded instead of their content."""
    for where, folders, names in os.walk(folder):
        here = Path(where)
        skipped = [name for name in folders if _folder_reason(here / name)]
        folders[:] = sorted(set(folders) - set(skipped))
        yield from (here / name for name in sorted([*skipped, *names]))


def _folder_reason(path: Path) -> str | None:
    if path.is_symlink():
        return "a link to a folder"
    return why_folder_left_out(path.name)


def _roots(folder: Path) -> tuple[Path, ...]:
    """Returns the folders that links may point to: the folder itself and Hugging Face blobs."""
    resolved = folder.resolve()
    if resolved.parent.name == "snapshots":
        return (resolved, resolved.parent.parent / "blobs")
    return (resolved,)


def _reason(entry: Path, path: str, allowed: tuple[Path, ...]) -> str | None:
    """Returns why a file is skipped, or None if it is pushed."""
    if entry.is_dir():
        return _folder_reason(entry)
    if reason := why_left_out(path):
        return reason
    if not _is_utf8(path):
        return "the name is not UTF-8"
    # Unlike Path.resolve, this fails cleanly on circular links.
    target = Path(os.path.realpath(entry))
    if not any(target.is_relative_to(root) for root in allowed):
        return "a link to outside the folder"
    return None if target.is_file() else "not a regular file"


def _is_utf8(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def _size(path: Path) -> int:
    try:
        return path.stat().st_size if path.is_file() else 0
    except OSError:
        return 0


def _refuse_incomplete(folder: Path, selection: Selection) -> None:
    _refuse_missing_weights(selection)
    paths = {file.path for file in selection.files}
    for file in selection.files:
        if file.size < 1024 and file.source.read_bytes().startswith(LFS_START):
            raise StokerError(
                f"{file.path} is a Git LFS pointer, not the file itself.",
                hint="Run 'git lfs pull' in the folder and push again.",
            )
        if file.path.endswith(INDEX_SUFFIX) and (missing := _missing_shards(file) - paths):
            raise StokerError(
                f"{file.path} names shards that are missing: {', '.join(sorted(missing)[:5])}.",
                hint="Download or save the model again, and push the whole folder.",
            )
    has_gguf = any(file.source.suffix.lower() == GGUF for file in selection.files)
    if not has_gguf and not paths.intersection(CONFIGS):
        raise StokerError(f"No config.json in {folder}.", hint=_elsewhere(folder, selection.files))


def _refuse_missing_weights(selection: Selection) -> None:
    if any(file.source.suffix.lower() in WEIGHT_SUFFIXES for file in selection.files):
        return
    for item in selection.left_out:
        if item.reason == PICKLED:
            raise StokerError(
                f"The folder has pickled weights ({item.path}) but no safetensors. "
                "Pickle files can run code, so the server does not load them.",
                hint=CONVERSION,
            )
    raise StokerError(
        "No weights found in the folder.",
        hint="Push the folder that save_pretrained() wrote: *.safetensors with config.json.",
    )


def _missing_shards(index: LocalFile) -> set[str]:
    """Returns the shards that an index names, as paths in the artifact."""
    try:
        content: Any = json.loads(index.source.read_bytes())
        weight_map = cast("dict[str, str]", content["weight_map"])
        parent = PurePosixPath(index.path).parent
        return {(parent / shard).as_posix() for shard in weight_map.values()}
    except (ValueError, TypeError, KeyError, AttributeError):
        # The server inspects the index and reports errors.
        return set()


def _elsewhere(folder: Path, files: tuple[LocalFile, ...]) -> str:
    for file in files:
        if file.source.name in CONFIGS:
            return f"Did you mean {file.source.parent}? It contains a config.json."
    return (
        f"Push the folder that save_pretrained() wrote. {folder} does not look like a model folder."
    )
