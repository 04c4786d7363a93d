"""Where a deployment's model lies: an operator's folder, or links to an artifact's blobs."""

import asyncio
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from stoker.artifacts import service as artifacts
from stoker.config import Settings
from stoker.errors import InvalidRequestError
from stoker.inspection import validate_path
from stoker.runtime.interface import DeploymentSpec, LoadError
from stoker.store.blobs import Blobs
from stoker.store.db import Database

FOLDER = "folder:"


class ModelFolders:
    """Model folders by source. A source is an upload's id, or `folder:` and an operator's path."""

    def __init__(self, settings: Settings, database: Database, blobs: Blobs) -> None:
        self._root = settings.data_dir.resolve() / "models"
        self._database = database
        self._blobs = blobs

    async def folder(self, spec: DeploymentSpec) -> Path:
        if spec.source.startswith(FOLDER):
            path = Path(spec.source.removeprefix(FOLDER))
            if not await asyncio.to_thread(path.is_dir):
                raise LoadError("the source folder does not exist any more.")
            return path
        target = self._root / spec.source
        if not await asyncio.to_thread(target.is_dir):
            async with self._database.reading() as session:
                files = await artifacts.files_of(session, spec.source)
            if not files:
                raise LoadError("the artifact's files do not exist any more.")
            await asyncio.to_thread(self._link, target, files)
        return target

    def drop(self, source: str) -> None:
        """Forget the links to an upload's files."""
        if not source.startswith(FOLDER):
            shutil.rmtree(self._root / source, ignore_errors=True)

    def _link(self, target: Path, files: Mapping[str, tuple[str, int]]) -> None:
        """Names were validated at upload and are checked again: they become paths only here."""
        self._root.mkdir(parents=True, exist_ok=True)
        building = Path(tempfile.mkdtemp(dir=self._root, prefix=".building-"))
        for name, (key, _) in files.items():
            validate_path(name)
            link = building / name
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(self._blobs.local_path(key))
        try:
            building.rename(target)
        except OSError:
            # Another start has made it meanwhile.
            shutil.rmtree(building, ignore_errors=True)


def source_folder(settings: Settings, given: str) -> Path:
    """An operator's folder that a client named. Raises `InvalidRequestError` for any other."""
    roots = [root.resolve() for root in settings.source_dirs]
    try:
        # Resolved first: neither `..` nor a link leads out of the folders that were named.
        path = Path(os.path.realpath(given))
        inside = "\0" not in given and any(path.is_relative_to(root) for root in roots)
        if inside and any((path / name).is_file() for name in ("config.json", "model_index.json")):
            return path
    except (OSError, ValueError):
        inside = False
    raise InvalidRequestError(
        "'source' must be a folder with a config.json or model_index.json, below one that the "
        "operator has named (STOKER_SOURCE_DIRS). Or upload an artifact and give its id.",
        param="source",
    )


class FolderReader:
    """An operator's folder as inspection reads it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def sizes(self) -> Mapping[str, int]:
        files = [path for path in self._folder.rglob("*") if path.is_file()]
        return {str(path.relative_to(self._folder)): path.stat().st_size for path in files}

    def read(self, path: str, offset: int, length: int) -> bytes:
        with (self._folder / path).open("rb") as file:
            file.seek(offset)
            return file.read(length)
