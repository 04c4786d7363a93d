"""Reports a full disk to the client."""

import contextlib
import errno
import sqlite3
from collections.abc import Generator

from sqlalchemy.exc import OperationalError

from stoker.base.errors import CapacityError

# A file over RLIMIT_FSIZE or the file system's own limit counts as a full disk.
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


@contextlib.contextmanager
def full_disk_reported() -> Generator[None]:
    """Converts a write failure for lack of space into a `CapacityError`."""
    try:
        yield
    except (OSError, OperationalError, sqlite3.OperationalError) as error:
        if (full := full_disk(error)) is None:
            raise
        raise full from error


def full_disk(error: Exception) -> CapacityError | None:
    """Returns the client's error for a write failure for lack of space. Returns None for any other
    error.
    """
    origin = error.orig if isinstance(error, OperationalError) else error
    if isinstance(origin, sqlite3.OperationalError):
        is_full = getattr(origin, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
    else:
        is_full = isinstance(error, OSError) and error.errno in _FULL
    if not is_full:
        return None
    return CapacityError(
        (
            "The server's disk is full. Acknowledged data is safe. Continue when the "
            "operator has freed space."
        ),
        code="insufficient_storage",
    )
