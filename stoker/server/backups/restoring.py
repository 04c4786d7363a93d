"""Restores a backup into an empty data folder."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from stoker.server.backups.archive import (
    DATABASE,
    Advance,
    ArchiveReader,
    BackupError,
    Manifest,
    naming_full_disk,
)
from stoker.store.folder_lock import FILE as LOCK
from stoker.store.folder_lock import locked
from stoker.store.schema import revisions

_WORKING = "restoring"
"""Folder in the data folder that holds the files until all of them were checked."""
_IGNORED = {LOCK, _WORKING, "lost+found"}
"""Entries that an empty data folder may have."""


def restore(
    archive: Path,
    data_dir: Path,
    *,
    begin: Callable[[int], None] = lambda _total: None,
    advance: Advance = lambda _count: None,
) -> Manifest:
    """Restores a backup. Checks all files before the data folder gets the first one.

    Args:
        begin: is called with the number of bytes to copy.

    Raises `BackupError`, `FolderInUseError` if a server uses the folder, and `OSError` if a file
    cannot be read or written. Then the folder is empty as before.
    """
    with archive.open("rb") as file, locked(data_dir, None):
        reader = ArchiveReader(file)
        _check_schema(reader.manifest)
        _check_empty(data_dir)
        size = os.fstat(file.fileno()).st_size
        free = shutil.disk_usage(data_dir).free
        if size > free:
            raise BackupError(
                f"The backup needs {size / 1e9:.1f} GB, and the disk of {data_dir} has "
                f"{free / 1e9:.1f} GB left."
            )
        begin(size)
        working = data_dir / _WORKING
        # A killed restore may have left files.
        shutil.rmtree(working, ignore_errors=True)
        try:
            with naming_full_disk(data_dir):
                _unpack(reader, working, advance)
            _move(working, data_dir)
        finally:
            shutil.rmtree(working, ignore_errors=True)
    return reader.manifest


def _check_schema(manifest: Manifest) -> None:
    if revisions().isdisjoint({manifest.schema, manifest.oldest_schema}):
        raise BackupError(
            f"The backup was made by release {manifest.release}, whose database schema this "
            f"release cannot use. Install release {manifest.release} or a newer one."
        )


def _check_empty(data_dir: Path) -> None:
    others = sorted({path.name for path in data_dir.iterdir()} - _IGNORED)
    if others:
        raise BackupError(
            f"The data folder {data_dir} is not empty: it holds {others[0]!a}. Choose an empty or "
            "new folder with --data-dir, or move the old one away."
        )


def _unpack(reader: ArchiveReader, working: Path, advance: Advance) -> None:
    working.mkdir(mode=0o700)
    has_database = False
    for name in reader.files():
        path = working / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(_open_private(path), "wb") as file:
            reader.copy(file, advance)
            file.flush()
            os.fsync(file.fileno())
        has_database = has_database or name == DATABASE
    if not has_database:
        raise BackupError("The backup holds no database.")


def _open_private(path: Path) -> int:
    """Opens a file for writing that only its owner can read. Truncates an earlier one."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)


def _move(working: Path, data_dir: Path) -> None:
    """Moves the files to their places. The database is last: a server starts with all or none."""
    for path in sorted(working.iterdir(), key=lambda path: path.name == DATABASE):
        path.rename(data_dir / path.name)
    os.sync()
