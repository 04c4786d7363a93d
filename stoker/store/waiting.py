"""Writes that wait until the database can be had, for what works in the background."""

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
"""Errors of the database that say nothing about what is written, such as a full disk."""


async def written(write: Callable[[], Awaitable[T]], what: str) -> T:
    """What `write` returns. It retries while the database is unavailable, and logs that once.

    Args:
        write: a transaction.
        what: for the log, in the plural.

    Raises:
        Exception: of `write`, that says something about what is written.
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
    """Do this every so often, until cancelled. Where it fails it is done again the next time, which
    is told once until it goes well.

    Args:
        what: for the log: `… failed; retrying`.
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
