"""Copies of the database of a running server, and the files that they name."""

import os
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from stoker.server.backups.archive import BackupError

MODEL_FILES = "SELECT blob_key, size FROM upload_files JOIN artifacts ON live_upload_id = upload_id"
_FILES = "SELECT id, size FROM files"
_HAS_SUPPORT = "SELECT 1 FROM sqlite_master WHERE name = 'schema_support'"
_ARTIFACTS = "SELECT count(*) FROM artifacts WHERE live_upload_id IS NOT NULL"


@dataclass(frozen=True)
class DatabaseCopy:
    """A copy of the database."""

    path: Path
    schema: str
    oldest_schema: str
    """Oldest revision whose release can use the copy. Empty if the schema records none."""
    artifacts: int
    files: dict[str, int]
    """Sizes in bytes of the files that models and jobs use, by path below the blobs."""


def take(database: Path, target: Path) -> DatabaseCopy:
    """Copies a database in one step, so that the copy has the state of one moment.

    Args:
        target: file of the copy. An existing one is replaced.

    Raises `BackupError` if the database cannot be read.
    """
    target.unlink(missing_ok=True)
    try:
        with (
            closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True)) as source,
            closing(sqlite3.connect(target)) as copy,
        ):
            source.backup(copy)
            # Plain SQL of columns that all releases have: the server may run an older release.
            ((schema,),) = copy.execute("SELECT version_num FROM alembic_version")
            oldest_schema = _oldest_schema(copy)
            files = dict(copy.execute(MODEL_FILES).fetchall())
            files |= {f"files/{identifier}": size for identifier, size in copy.execute(_FILES)}
            ((artifacts,),) = copy.execute(_ARTIFACTS)
    except (sqlite3.Error, ValueError) as error:
        if not os.access(database.parent, os.W_OK):
            raise BackupError(
                f"The data folder {database.parent} is read-only, so SQLite cannot open its "
                "database. Copy the folder to a writable place, and back up the copy."
            ) from error
        raise BackupError(f"The database {database} cannot be copied: {error}.") from error
    return DatabaseCopy(target, schema, oldest_schema, artifacts, files)


def _oldest_schema(copy: sqlite3.Connection) -> str:
    if not copy.execute(_HAS_SUPPORT).fetchone():
        return ""
    ((revision,),) = copy.execute("SELECT oldest_revision FROM schema_support")
    return revision
