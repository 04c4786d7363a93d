"""A full disk, told to the client as what it is."""

import contextlib
import errno
import sqlite3
from collections.abc import Generator

from sqlalchemy.exc import OperationalError

from stoker.errors import CapacityError

# A file over RLIMIT_FSIZE or the file system's own limit is a disk that is full for it.
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


@contextlib.contextmanager
def full_disk_reported() -> Generator[None]:
    """Turn a failure to write for want of space into a `CapacityError`."""
    try:
        yield
    except (OSError, OperationalError) as error:
        if not _is_full(error):
            raise
        raise CapacityError(
            "The server's disk is full. What was acknowledged before is safe; go on when the "
            "operator has made room.",
            code="insufficient_storage",
        ) from error


def _is_full(error: OSError | OperationalError) -> bool:
    if isinstance(error, OperationalError):
        return getattr(error.orig, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
    return error.errno in _FULL
