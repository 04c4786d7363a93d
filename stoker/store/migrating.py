"""Migrates a PostgreSQL while other servers use it."""

import asyncio
import logging
import time

from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

from stoker.store import postgres, schema
from stoker.store.schema import SchemaInUseError

log = logging.getLogger(__name__)

_MIGRATING = 0x73746F6B01
"""PostgreSQL advisory lock for schema migrations."""
_POLL_S = 0.05
_NOTICE_S = 5.0
"""Seconds between two log lines about a migration of another server."""
_PAUSE_S = 2.0
"""Seconds between two attempts, in which other transactions can use the tables."""
_OPTIONS = (
    # All other statements on a table wait behind a statement that waits for it.
    "SET lock_timeout = '2s'",
    # PostgreSQL 14 and later then end the statement of a server that was killed.
    "SELECT set_config('client_connection_check_interval', '1s', false) "
    "WHERE current_setting('server_version_num')::int >= 140000",
)
_HEARTBEAT_S = schema.GONE_AFTER_S + 1.0
"""Seconds in which heartbeats of killed servers become old."""
_PATIENCE_S = 300.0
"""Seconds during which a migration is tried again while other transactions hold its tables."""
_LOCKED = ("55P03", "40P01")
"""SQLSTATE of a lock timeout and of a deadlock."""


async def migrate(url: str) -> None:
    """Migrates the schema. Concurrent calls run one after another.

    Raises `stoker.store.schema.SchemaError`.
    """
    engine = postgres.patient_engine(url)
    try:
        # Closing the connection releases the lock, as does the end of the process.
        async with engine.connect() as connection:
            await _lock(connection)
            for statement in _OPTIONS:
                await connection.execute(text(statement))
            await connection.commit()
            await _upgrade(connection)
    finally:
        await engine.dispose()


async def _lock(connection: AsyncConnection) -> None:
    begun = time.monotonic()
    noted_at = begun
    # Polled, because a statement that waits would block `CREATE INDEX CONCURRENTLY`.
    while not await connection.scalar(text(f"SELECT pg_try_advisory_lock({_MIGRATING})")):
        await connection.commit()
        if time.monotonic() - noted_at >= _NOTICE_S:
            noted_at = time.monotonic()
            log.warning(
                "start waits: another server migrates the database",
                extra={"seconds": round(noted_at - begun)},
            )
        await asyncio.sleep(_POLL_S)
    await connection.commit()


async def _upgrade(connection: AsyncConnection) -> None:
    begun = time.monotonic()
    while True:
        try:
            await connection.run_sync(schema.upgrade)
        except SchemaInUseError:
            # A server that was killed counts as running until its heartbeat is old.
            if time.monotonic() - begun > _HEARTBEAT_S:
                raise
        except DBAPIError as error:
            is_locked = getattr(error.orig, "sqlstate", None) in _LOCKED
            if not is_locked or time.monotonic() - begun > _PATIENCE_S:
                raise
            log.warning("migration waits for tables that other transactions use")
        else:
            return
        await connection.rollback()
        await asyncio.sleep(_PAUSE_S)
