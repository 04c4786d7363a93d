"""Creates a backup from a data folder. The server may run meanwhile.

Models may be uploaded and deleted during the copy. So the database is copied first, then the files.
If a file of this copy was deleted in between, a newer copy of the database replaces it.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

import stoker
from stoker.base.temporary_folder import TemporaryFolder
from stoker.server.backups import snapshots
from stoker.server.backups.archive import (
    BLOBS,
    DATABASE,
    FORMAT,
    KEY_FILES,
    SECRET,
    Advance,
    ArchiveWriter,
    BackupError,
    Manifest,
    naming_full_disk,
)
from stoker.server.backups.snapshots import DatabaseCopy
from stoker.store.blobs import UNFINISHED

ATTEMPTS = 5
"""Maximum number of database copies per backup."""
_TEMPORARY = ".stoker-backup-"
_Identity = tuple[int, int]
"""Size of a file in bytes and its modification time in nanoseconds."""


@dataclass
class Backup:
    """A finished backup."""

    manifest: Manifest
    path: Path
    size: int = 0
    """Size of the archive in bytes."""
    artifacts: int = 0
    """Number of artifacts with files."""
    missing: list[str] = field(default_factory=list[str])
    """Files that the database names and the data folder lacks. Their models do not load."""


def create(
    data_dir: Path,
    target: Path,
    *,
    with_secret: bool = True,
    begin: Callable[[int], None] = lambda _total: None,
    advance: Advance = lambda _count: None,
) -> Backup:
    """Writes a backup to `target`, which only its owner can read.

    Args:
        target: a new file, or a folder, which gets a file that is named after the time.
        with_secret: whether the backup contains the server's secret and the key files.
        begin: is called with the number of bytes to copy.

    Raises `BackupError`, and `OSError` if a file cannot be read or written. Then `target` does not
    exist.
    """
    now = datetime.now(UTC)
    if target.is_dir():
        target /= f"stoker-{now:%Y-%m-%dT%H%M%SZ}.tar"
    if target.exists():
        raise BackupError(f"{target} exists. Choose another name.")
    if not target.absolute().parent.is_dir():
        raise BackupError(f"There is no folder {target.absolute().parent}.")
    if not (data_dir / DATABASE).is_file():
        raise BackupError(
            f"{data_dir} has no database. Choose the server's folder with --data-dir."
        )
    folder = TemporaryFolder(_TEMPORARY, target.absolute().parent)
    try:
        archive = folder.path / "archive"
        with naming_full_disk(target.absolute().parent), archive.open("xb") as file:
            archive.chmod(0o600)
            copying = _Copying(data_dir, file, folder.path / DATABASE, advance)
            backup = copying.run(target, now.isoformat(), with_secret=with_secret, begin=begin)
            file.flush()
            os.fsync(file.fileno())
            backup.size = file.tell()
        archive.rename(target)
        _sync_folder(target.absolute().parent)
    finally:
        folder.remove()
    return backup


class _Copying:
    """Copies a data folder into an archive."""

    def __init__(self, data_dir: Path, file: IO[bytes], database: Path, advance: Advance) -> None:
        """
        Args:
            database: path for copies of the database.
        """
        self._data_dir = data_dir
        self._blobs = data_dir / BLOBS
        self._file = file
        self._database = database
        self._advance = advance
        self._copied: dict[str, _Identity] = {}

    def run(
        self, target: Path, created_at: str, *, with_secret: bool, begin: Callable[[int], None]
    ) -> Backup:
        snapshot = snapshots.take(self._data_dir / DATABASE, self._database)
        self._check_space(begin)
        manifest = Manifest(
            format=FORMAT,
            release=stoker.__version__,
            schema=snapshot.schema,
            oldest_schema=snapshot.oldest_schema,
            created_at=created_at,
            has_secret=with_secret and (self._data_dir / SECRET).is_file(),
        )
        writer = ArchiveWriter(self._file, manifest, self._advance)
        snapshot, missing = self._copy_blobs(writer, snapshot)
        secrets = [self._data_dir / name for name in (*KEY_FILES, SECRET)] if with_secret else []
        for path in (*filter(Path.is_file, secrets), snapshot.path):
            with path.open("rb") as file:
                writer.add_file(path.name, file, os.fstat(file.fileno()).st_size)
        writer.finish()
        return Backup(manifest, target, artifacts=snapshot.artifacts, missing=sorted(missing))

    def _check_space(self, begin: Callable[[int], None]) -> None:
        total = _size(self._database) + sum(map(_size, _files(self._blobs)))
        begin(total)
        free = shutil.disk_usage(self._database.parent).free
        if total > free:
            raise BackupError(
                f"The backup needs {total / 1e9:.1f} GB, and its disk has {free / 1e9:.1f} GB left."
            )

    def _copy_blobs(
        self, writer: ArchiveWriter, snapshot: DatabaseCopy
    ) -> tuple[DatabaseCopy, set[str]]:
        """Copies all files. Returns the copy of the database that belongs to them, and the paths of
        files that were missing from the start.
        """
        before = set[str]()
        for _ in range(ATTEMPTS):
            self._copy_changed(writer)
            missing = {
                key
                for key, size in snapshot.files.items()
                if self._copied.get(key, (-1, 0))[0] != size
            }
            # The next copy of the database does not name files that were deleted meanwhile. Files
            # that it names again were missing from the start.
            if not missing or missing == before:
                return snapshot, missing
            before = missing
            snapshot = snapshots.take(self._data_dir / DATABASE, self._database)
        raise BackupError(
            f"Models were deleted during each of {ATTEMPTS} attempts. Repeat the command later."
        )

    def _copy_changed(self, writer: ArchiveWriter) -> None:
        for path in _files(self._blobs):
            try:
                file = path.open("rb")
            except FileNotFoundError:
                continue
            with file:
                status = os.fstat(file.fileno())
                identity = (status.st_size, status.st_mtime_ns)
                key = path.relative_to(self._blobs).as_posix()
                if self._copied.get(key) != identity:
                    writer.add_file(f"{BLOBS}/{key}", file, status.st_size)
                    self._copied[key] = identity


def _files(folder: Path) -> Iterator[Path]:
    for parent, folders, names in os.walk(folder):
        if UNFINISHED in folders:
            folders.remove(UNFINISHED)
        yield from (Path(parent, name) for name in names)


def _size(path: Path) -> int:
    """Returns a file's size in bytes, 0 if it was deleted."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
