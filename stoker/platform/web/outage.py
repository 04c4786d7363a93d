"""Reports an unreachable database or object store to the client."""

import contextlib
import logging
import sqlite3
from collections.abc import Generator

from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from stoker.base.errors import CapacityError
from stoker.store.blobs import StoreUnavailableError

log = logging.getLogger(__name__)

_RETRY_AFTER_S = 2
_STORE_RETRY_AFTER_S = 10
_BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_CANTOPEN})
_GONE = ("08", "53", "57P")
"""Prefixes of PostgreSQL's error codes that are not caused by the statement: no connection, too
many connections, shutting down or starting up.
"""


@contextlib.contextmanager
def lost_store_reported() -> Generator[None]:
    """Converts the error of an unreachable store into a `CapacityError`."""
    try:
        yield
    except StoreUnavailableError as error:
        raise store_unavailable() from error


def lost_store(error: Exception) -> CapacityError | None:
    """Returns the client's error if the object store does not answer. Returns None for any other
    error.
    """
    return store_unavailable() if isinstance(error, StoreUnavailableError) else None


def store_unavailable() -> CapacityError:
    """Returns the client's error for an object store that does not answer."""
    return CapacityError(
        ("The object store does not answer. Acknowledged data is safe. Retry in a moment."),
        code="store_unavailable",
        retry_after_s=_STORE_RETRY_AFTER_S,
    )


def lost_database(error: Exception) -> CapacityError | None:
    """Returns the client's error if the database is unreachable. Returns None for any other
    error.
    """
    if not _is_lost(error):
        return None
    log.error("database does not answer", exc_info=error)
    return CapacityError(
        ("The server's database does not answer. Acknowledged data is safe. Retry in a moment."),
        code="database_unavailable",
        retry_after_s=_RETRY_AFTER_S,
    )


def _is_lost(error: Exception) -> bool:
    # Only the database raises these unhandled: code that fetches or calls something else reports
    # its own error.
    if isinstance(error, PoolTimeoutError | ConnectionError):
        return True
    origin = error
    if isinstance(error, DBAPIError):
        if error.connection_invalidated:
            return True
        origin = error.orig or error
    # The lowest byte of an extended code is the plain code.
    if ((getattr(origin, "sqlite_errorcode", None) or 0) & 0xFF) in _BUSY:
        return True
    return str(getattr(origin, "sqlstate", None) or "").startswith(_GONE)
