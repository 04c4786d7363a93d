"""Provides a deployment's model folder: an operator's folder, links to an artifact's blobs, or
copies of blobs in a bucket.
"""

import asyncio
import hashlib
import os
import shutil
import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path
from weakref import WeakValueDictionary

from stoker.base.config import Settings
from stoker.base.errors import InvalidRequestError
from stoker.inspection import Inspectors, validate_path
from stoker.models.adapters.lora import CONFIG, WEIGHTS
from stoker.platform.quotas.limits import GIB
from stoker.platform.quotas.service import QuotaService
from stoker.registry.artifacts import service as artifacts
from stoker.registry.deployments.copies import Copies
from stoker.registry.deployments.merged_folders import PREFIX, MergedFolders
from stoker.registry.deployments.merging import Merges
from stoker.runtime.interface import LoadError
from stoker.runtime.observed import Reason
from stoker.runtime.specification import DeploymentSpec
from stoker.store.blobs import Blobs, Files
from stoker.store.db import Database

FOLDER = "folder:"
MERGED = "merged:"
_SINGLE = "float32"
_STORED = "stored"
_MERGED_IDLE_S = 600.0
"""Seconds, in addition to the longest load, after which an idle folder of a merged adapter is
removed.
"""


def merged_source(adapter: str, base: str, *, is_single: bool) -> str:
    """Returns the source name of an adapter, by its upload id, merged into the weights of another
    source.

    Args:
        is_single: see `Merges.merge`.
    """
    return f"{MERGED}{_SINGLE if is_single else _STORED}:{adapter}:{base}"


class FilesMissingError(LoadError):
    """Raised if a model's files are missing from their place, such as in an incomplete data
    folder.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message, reason=Reason.FILES_MISSING)


def _name(source: str) -> str:
    """Returns the name of the source's folder below the models folder."""
    if not source.startswith(MERGED):
        return source
    return f"{PREFIX}{hashlib.sha256(source.encode()).hexdigest()[:32]}"


class ModelFolders:
    """Model folders by source. A source is an upload's id, `folder:` and an operator's path, or a
    name that `merged_source` builds from either.
    """

    def __init__(
        self,
        settings: Settings,
        database: Database,
        blobs: Blobs,
        quotas: QuotaService,
        inspectors: Inspectors,
    ) -> None:
        self._root = settings.data_dir.resolve() / "models"
        self._adapters = settings.data_dir.resolve() / "adapters"
        self._database = database
        self._blobs = blobs
        self._making: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """Maps a source to the lock that is held while its folder is made or repaired."""
        self.copies = Copies(
            self._root, int(settings.model_cache_gib * GIB), quotas.check_local_disk
        )
        """Copies of blobs that are in a bucket."""
        self.merged = MergedFolders(
            self._root,
            database,
            quotas,
            Merges(settings, inspectors, quotas.check_local_disk),
            idle_s=settings.load_timeout_s + _MERGED_IDLE_S,
        )
        self._wanted: dict[str, dict[str, tuple[str, Files]]] = {}
        """Maps base id and adapter id to the upload and files of an adapter that replicas read and
        that is still to be fetched.
        """
        self._are_whole: dict[str, bool] = {}
        """Maps a source to True if all its files were present at the last check."""

    @property
    def names(self) -> list[str]:
        """Sources that were placed on this machine, as specifications name them. Merged folders
        appear under names that no caller requests.
        """
        return [path.name for path in _listed(self._root) if not path.name.startswith(".")]

    @property
    def looked_at(self) -> int:
        """Number of models with checked files. The start checks all models that are to run."""
        return len(self._are_whole)

    @property
    def incomplete(self) -> int:
        """Number of these models with missing files."""
        return sum(not is_whole for is_whole in self._are_whole.values())

    async def folder(self, spec: DeploymentSpec, *, is_ahead: bool = False) -> Path:
        if self._blobs.is_shared and not is_ahead:
            self.copies.note(_name(spec.source), spec.id)
        try:
            source = spec.source
            if source.startswith(MERGED) and is_ahead:
                # The merge is made on the first call. A merged model needs its base's files in any
                # case.
                source = source.removeprefix(MERGED).split(":", 2)[2]
            if source.startswith(MERGED):
                folder = await self._of_merged(spec)
            else:
                folder = await self._of(source, is_ahead=is_ahead)
        except FilesMissingError:
            self._are_whole[spec.source] = False
            raise
        self._are_whole[spec.source] = True
        return folder

    async def _of_merged(self, spec: DeploymentSpec) -> Path:
        target = self._root / _name(spec.source)
        # Note the use before checking the folder, so that it is not removed in between.
        self.merged.note(target.name, spec.id)
        # Several replicas may need the folder at once.
        async with self._making.setdefault(spec.source, asyncio.Lock()):
            is_there = await asyncio.to_thread(target.is_dir)
            if is_there and await asyncio.to_thread(_has_broken_links, target):
                # The links lead to an operator's folder.
                await asyncio.to_thread(shutil.rmtree, self._set_aside(target))
                is_there = False
            if not is_there:
                await self._merge(spec, target)
        return target

    async def _of(self, source: str, *, is_ahead: bool = False) -> Path:
        if source.startswith(FOLDER):
            path = Path(source.removeprefix(FOLDER))
            if not await asyncio.to_thread(_has_model, path):
                raise FilesMissingError(
                    f"its source folder {path} does not exist, or contains no model."
                )
            return path
        target = self._root / _name(source)
        if self._blobs.is_shared and not is_ahead:
            # Note the use before checking the folder, so that it is not removed in between.
            self.copies.touch(target.name)
        # Several replicas may need the folder at once.
        async with self._making.setdefault(source, asyncio.Lock()):
            is_there = await asyncio.to_thread(target.is_dir)
            if not self._blobs.is_shared:
                files = await self._files(source)
                await self.paths(source, files)
                await (self._blobs.place(files, target) if is_there else self._link(target, files))
            elif not is_there:
                await self._place(target, await self._files(source), is_ahead=is_ahead)
        return target

    async def _place(self, target: Path, files: Files, *, is_ahead: bool) -> None:
        """Fetches a source's files into its folder. File names were validated at upload and are
        checked again, because they become paths only here.
        """
        for name in files:
            validate_path(name)

        async def fetch(folder: Path) -> None:
            await self._blobs.place(files, folder)

        size = sum(size for _, size in files.values())
        await self.copies.bring(target.name, size, fetch, may_evict=not is_ahead)

    async def paths(self, upload_id: str, files: Files) -> dict[str, Path]:
        """Returns the local paths of an upload's files, for immediate reading. Raises
        `LoadError`.
        """
        local_paths = {name: self._blobs.local_path(key) for name, (key, _) in files.items()}
        existing = {name: path for name, path in local_paths.items() if path is not None}
        if len(existing) == len(files):
            sizes = {name: size for name, (_, size) in files.items()}
            await asyncio.to_thread(_check_whole, existing, sizes)
            return existing
        folder = await self._of(upload_id)
        return {name: folder / name for name in files}

    async def _files(self, upload_id: str) -> Files:
        async with self._database.reading() as session:
            files = await artifacts.files_of(session, upload_id)
        if not files:
            raise LoadError("the artifact's files do not exist any more.")
        return files

    async def content(self, spec: DeploymentSpec) -> str:
        if ":" in spec.source:
            # An operator's folder can change, and a merged one has no digest.
            return ""
        async with self._database.reading() as session:
            return await artifacts.content_of(session, spec.source)

    async def _merge(self, spec: DeploymentSpec, target: Path) -> None:
        how, adapter, base = spec.source.removeprefix(MERGED).split(":", 2)
        files = await self._files(adapter)
        with self.copies.held(_name(adapter)), self.copies.held(_name(base)):
            await self.merged.make(
                spec,
                await self.paths(adapter, _two(files)),
                await self._of(base),
                target,
                is_single=how == _SINGLE,
                # An operator's folder may be anywhere, and is permanent.
                is_linked=base.startswith(FOLDER),
            )

    async def adapters(self, spec: DeploymentSpec) -> Path:
        folder = self._adapters / spec.deployment
        # The folder must exist before the replica's walls are set up, because they enclose existing
        # folders.
        await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
        for adapter_id, (upload_id, files) in [*self._wanted.get(spec.deployment, {}).items()]:
            # The adapter could not be fetched before.
            await self.put_adapter(spec.deployment, adapter_id, upload_id, files)
        return folder

    async def put_adapter(
        self, base_id: str, adapter_id: str, upload_id: str, files: Files
    ) -> None:
        """Makes an adapter's files readable by the replicas of its base, including running ones.

        Raises `BucketUnreachableError`. The fetch is then retried before a replica starts.
        """
        target = self._adapters / base_id / adapter_id
        if self._blobs.is_shared:
            if await asyncio.to_thread(target.is_dir):
                return
            self._wanted.setdefault(base_id, {})[adapter_id] = (upload_id, files)
        with self.copies.held(upload_id):
            paths = await self.paths(upload_id, _two(files))
            await asyncio.to_thread(_place, target, paths)
        self._wanted.get(base_id, {}).pop(adapter_id, None)

    def drop_adapters(self, base_id: str, adapter_id: str = "") -> None:
        """Removes one adapter or all adapters from a base. An adapter has only two links, so this
        needs no thread.
        """
        if adapter_id:
            self._wanted.get(base_id, {}).pop(adapter_id, None)
        else:
            self._wanted.pop(base_id, None)
        shutil.rmtree(self._adapters / base_id / adapter_id, ignore_errors=True)

    def keep_only_adapters(self, wanted: Collection[tuple[str, str]]) -> None:
        """Removes all adapters except the passed pairs of base id and adapter id."""
        bases = {base for base, _ in wanted}
        for folder in _listed(self._adapters):
            if folder.name not in bases:
                self.drop_adapters(folder.name)
                continue
            for path in _listed(folder):
                if (folder.name, path.name) not in wanted:
                    self.drop_adapters(folder.name, path.name)

    async def keep_only(self, sources: Collection[str]) -> None:
        """Removes the folders of all other sources, which no deployment uses any more."""
        for source in self._are_whole.keys() - {*sources}:
            del self._are_whole[source]
        # Renamed synchronously, so that no deployment can be made in between. A later start creates
        # new folders.
        removed = [self._set_aside(path) for path in self._others(sources)]
        for path in removed:
            await asyncio.to_thread(shutil.rmtree, path, ignore_errors=True)

    async def drop(self, source: str) -> None:
        """Removes the folder of a source that no deployment uses any more."""
        path = self._root / _name(source)
        self._are_whole.pop(source, None)
        self.copies.forget(path.name)
        if not source.startswith(FOLDER) and path.is_dir():
            await asyncio.to_thread(shutil.rmtree, self._set_aside(path), ignore_errors=True)

    def _others(self, sources: Collection[str]) -> list[Path]:
        if not self._root.is_dir():
            return []
        kept_names = {_name(source) for source in sources}
        return [path for path in self._root.iterdir() if path.name not in kept_names]

    def _set_aside(self, path: Path) -> Path:
        aside = Path(tempfile.mkdtemp(dir=self._root, prefix=".removing-"))
        path.rename(aside / path.name)
        return aside

    async def _link(self, target: Path, files: Files) -> None:
        for name in files:
            validate_path(name)
        building = await asyncio.to_thread(_new_folder, self._root)
        await self._blobs.place(files, building)
        try:
            building.rename(target)
        except OSError:
            # Another start has made the folder in the meantime.
            await asyncio.to_thread(shutil.rmtree, building, ignore_errors=True)


def _new_folder(root: Path) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(dir=root, prefix=".building-"))


def _two(files: Files) -> Files:
    """Returns only the adapter's two files, without other uploaded files."""
    return {name: files[name] for name in (CONFIG, WEIGHTS)}


def _place(target: Path, paths: Mapping[str, Path]) -> None:
    if target.is_dir():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(dir=target.parent, prefix=".building-"))
    # Replicas may run as another user that must read the folder.
    building.chmod(0o755)
    for name, path in paths.items():
        try:
            # Not a symbolic link: a replica's walls allow access to this folder only.
            (building / name).hardlink_to(path)
        except OSError:
            shutil.copyfile(path, building / name)
    try:
        building.rename(target)
    except OSError:
        # The folder was made in the meantime.
        shutil.rmtree(building, ignore_errors=True)


def _check_whole(paths: Mapping[str, Path], sizes: Mapping[str, int]) -> None:
    """Raises `FilesMissingError` if a file is missing or has another size, in bytes."""
    for name, path in paths.items():
        try:
            size = path.stat().st_size
        except OSError as error:
            why = "is missing" if isinstance(error, FileNotFoundError) else error.strerror
            raise FilesMissingError(
                f"{name!a} {why} in the server's data folder. The operator can restore the "
                "folder 'blobs' from a backup. Otherwise upload the model again."
            ) from error
        if size != sizes[name]:
            raise FilesMissingError(
                f"{name!a} has {size} bytes in the server's data folder, but was uploaded "
                f"with {sizes[name]}. The operator can restore it from a backup. Otherwise "
                "upload the model again."
            )


def _has_model(folder: Path) -> bool:
    return any((folder / name).is_file() for name in ("config.json", "model_index.json"))


def _has_broken_links(folder: Path) -> bool:
    return any(path.is_symlink() and not path.exists() for path in folder.rglob("*"))


def _listed(folder: Path) -> list[Path]:
    return [*folder.iterdir()] if folder.is_dir() else []


def source_folder(settings: Settings, given: str) -> Path:
    """Returns an operator's folder that a client named. Raises `InvalidRequestError` for any other
    folder.
    """
    roots = [root.resolve() for root in settings.source_dirs]
    try:
        # Resolved first, so that neither `..` nor a link leads out of the configured folders.
        path = Path(os.path.realpath(given))
        inside = "\0" not in given and any(path.is_relative_to(root) for root in roots)
        if inside and _has_model(path):
            return path
    except (OSError, ValueError):
        inside = False
    raise InvalidRequestError(
        "'source' must be a folder with a config.json or model_index.json, below a "
        "folder that the operator allows (STOKER_SOURCE_DIRS). Otherwise upload an "
        "artifact and send its id.",
        param="source",
    )
