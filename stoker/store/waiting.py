"""Database writes of background tasks, which wait until the database is available."""

import asyncio
import logging
import sqlite3
from collections.abc import Awaitable, Callable
from typing import TypeVar

from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

log = logging.getLogger(__name__)

T = TypeVar("T")

RETRY_S = 0.5
_PASSING = (OperationalError, sqlite3.OperationalError, InterfaceError, PoolTimeoutError, OSError)
"""Errors that do not depend on the written data, such as a full disk."""


async def written(write: Callable[[], Awaitable[T]], what: str) -> T:
    """Returns the result of `write`. Retries while the database is unavailable, and logs this once.

    Args:
        write: a transaction.
        what: name for the log, in the plural.

    Raises:
        Exception: an error of `write` that depends on the written data.
    """
    is_told = False
    while True:
        try:
            return await write()
        except Exception as error:
            if not _passes(error):
                raise
            if not is_told:
                log.exception("%s could not be written; retrying until it succeeds", what)
            is_told = True
        await asyncio.sleep(RETRY_S)


async def repeated(work: Callable[[], Awaitable[object]], period_s: float, what: str) -> None:
    """Runs `work` every `period_s` seconds until cancelled. Retries a failed run after the next
    period, and logs consecutive failures once.

    Args:
        what: name for the log: `… failed; retrying`.
    """
    is_told = False
    while True:
        await asyncio.sleep(period_s)
        try:
            await work()
            is_told = False
        except Exception:
            if not is_told:
                log.exception("%s failed; retrying", what)
            is_told = True


def _passes(error: Exception) -> bool:
    return isinstance(error, _PASSING) or (
        isinstance(error, DBAPIError) and error.connection_invalidated
    )
