"""Lock on a data folder, so that two servers never write to the same one.

The kernel holds the lock (`flock`) and releases it when the process ends for any reason. A leftover
file locks nothing.
"""

import contextlib
import errno
import fcntl
import json
import logging
import os
import socket
from collections.abc import Generator
from pathlib import Path
from typing import Any

from sqlalchemy import make_url

log = logging.getLogger(__name__)

FILE = "lock"
_UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
_LONGEST = 1024
"""Maximum number of bytes that are read from the file."""
_UNWRITABLE = {
    errno.EACCES: "is not writable for user {user} of group {group}. Give it to this user",
    errno.EPERM: "is not writable for user {user} of group {group}. Give it to this user",
    errno.EROFS: "is read-only. Mount it writable",
    errno.ENOSPC: "is on a full disk. Free disk space",
    errno.EDQUOT: "is on a disk whose quota is used up. Free disk space",
}
"""Causes and remedies by the error of the first write."""


class FolderInUseError(OSError):
    """Another process holds the lock; the message names it."""


class FolderUnwritableError(OSError):
    """The data folder cannot be written; the message names cause and remedy."""


@contextlib.contextmanager
def locked(folder: Path, database_url: str | None) -> Generator[None]:
    """Locks a data folder, and an SQLite database outside of it.

    Raises `FolderInUseError`, and `FolderUnwritableError` if the folder cannot be written.
    """
    data_dir = folder.resolve()
    hint = "Stop it, or choose another folder with --data-dir or STOKER_DATA_DIR."
    try:
        descriptors = [lock(data_dir / FILE, f"The data folder {data_dir}", hint)]
    except OSError as error:
        if error.errno not in _UNWRITABLE:
            raise
        cause = _UNWRITABLE[error.errno].format(user=os.geteuid(), group=os.getegid())
        raise FolderUnwritableError(
            f"The data folder {data_dir} {cause}, or choose another folder with --data-dir or "
            "STOKER_DATA_DIR."
        ) from error
    try:
        if database := _sqlite_file(database_url):
            hint = "Stop it, or choose another database with STOKER_DATABASE_URL."
            path = database.with_name(f"{database.name}.{FILE}")
            descriptors.append(lock(path, f"The database {database}", hint))
        yield
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def lock(path: Path, what: str, hint: str) -> int:
    """Locks a file and writes this process' id into it. Closing the descriptor releases the lock.

    Args:
        what: start of the error message, such as `The data folder /x`.
        hint: end of the error message.

    Raises `FolderInUseError` if another process holds the lock, and `OSError` if the file cannot be
    written.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    while True:
        # Child processes do not inherit the descriptor.
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _holder(os.pread(descriptor, _LONGEST, 0))
            os.close(descriptor)
            raise FolderInUseError(f"{what} is in use by {holder}. {hint}") from None
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                os.close(descriptor)
                raise
            log.warning(
                "file system has no locks: a second server on the folder is not detected",
                extra={"path": str(path)},
            )
        if _is_at(descriptor, path):
            break
        # The file was removed between the two calls.
        os.close(descriptor)
    owner = {"pid": os.getpid(), "host": socket.gethostname()}
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(owner).encode() + b"\n", 0)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _holder(content: bytes) -> str:
    """Names the process that wrote the file, and its machine or container if it is a different
    one.
    """
    try:
        holder: Any = json.loads(content)
        pid, host = int(holder["pid"]), str(holder["host"])
    except (ValueError, TypeError, KeyError):
        return "another process"
    return f"process {pid}" if host == socket.gethostname() else f"process {pid} on {host}"


def _sqlite_file(database_url: str | None) -> Path | None:
    url = make_url(database_url) if database_url else None
    if url is None or url.get_backend_name() != "sqlite" or url.database in (None, "", ":memory:"):
        return None
    return Path(str(url.database)).resolve()
