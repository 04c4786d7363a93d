"""PostgreSQL for SQLAlchemy. Accepts the URLs of PostgreSQL's own tools, and does not ping a
recently used connection.

SQLAlchemy's own check (`pool_pre_ping`) needs three round trips before each transaction, as many as
a short transaction itself. A server that ended or restarted has closed its connections, which the
driver notices without a ping. Only a ping detects other failures, such as a firewall that has
forgotten a connection. These take longer than `TRUST_S` to occur.
"""

import time
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qsl, urlencode

from sqlalchemy import event
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import InvalidatePoolError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import ConnectionPoolEntry, NullPool

TRUST_S = 5.0
"""Seconds since the last use during which a connection is not pinged."""
_PATIENCE: dict[str, Any] = {
    "timeout": 10.0,
    "command_timeout": 30.0,
    # An inactive transaction must not keep locks that others wait for.
    "server_settings": {"idle_in_transaction_session_timeout": "60000"},
}
"""Timeouts of asyncpg, in seconds and milliseconds. A database that does not answer must not block
other work.
"""
_DRIVER = "postgresql+asyncpg://"
_USED_AT = "used_at"


def create_engine(
    url: str, connections: int, clock: Callable[[], float] = time.monotonic
) -> AsyncEngine:
    """
    Args:
        url: `postgresql+asyncpg://…`, with the options of libpq.
        connections: maximum number. The most recently used connection is used first.
    """
    pool_size = min(5, connections)
    engine = create_async_engine(
        _DRIVER,
        pool_size=pool_size,
        max_overflow=connections - pool_size,
        pool_use_lifo=True,
        connect_args={"dsn": dsn(url), **_PATIENCE},
        # Parameters are data of clients. Errors and logs must not repeat them.
        hide_parameters=True,
    )

    event.listen(engine.sync_engine, "handle_error", _redact)

    @event.listens_for(engine.sync_engine, "checkin")
    def on_checkin(_: Any, record: ConnectionPoolEntry) -> None:
        record.info[_USED_AT] = clock()

    @event.listens_for(engine.sync_engine, "checkout")
    def on_checkout(connection: Any, record: ConnectionPoolEntry, _: Any) -> None:
        used_at = record.info.get(_USED_AT)
        if used_at is None:
            # The connection is new.
            return
        # SQLAlchemy then replaces this and all other connections.
        if connection.driver_connection.is_closed():
            raise InvalidatePoolError
        if clock() - used_at > TRUST_S:
            try:
                engine.dialect.do_ping(connection)
            except Exception as error:
                raise InvalidatePoolError from error

    return engine


def patient_engine(url: str) -> AsyncEngine:
    """Returns an engine without timeouts, for long statements that wait for others."""
    engine = create_async_engine(
        _DRIVER, poolclass=NullPool, connect_args={"dsn": dsn(url)}, hide_parameters=True
    )
    event.listen(engine.sync_engine, "handle_error", _redact)
    return engine


def _redact(context: ExceptionContext) -> None:
    """Removes the values of rows from an error and from its causes.

    PostgreSQL quotes a row that breaks a constraint (`DETAIL: Failing row contains (…)`), and the
    driver quotes a parameter that it cannot encode. All of it would be logged.
    """
    translated = context.original_exception
    raw = translated.__cause__
    if raw is None or not type(raw).__module__.startswith("asyncpg"):
        return
    state = str(getattr(raw, "sqlstate", None) or "")
    # Data errors, class 22, quote the data in their message.
    quotes_values = state.startswith("22") or isinstance(raw, ValueError)
    shown_message = (
        "the message is hidden because it quotes data" if quotes_values else _message(raw)
    )
    for name in ("detail", "hint", "context", "internal_query"):
        if hasattr(raw, name):
            setattr(raw, name, None)
    raw.args = (shown_message,)
    # The error of the driver's encoder quotes the value, too.
    raw.__cause__ = raw.__context__ = None
    translated.args = (f"{type(raw)}: {shown_message}",)
    if (error := context.sqlalchemy_exception) is not None:
        error.args = (f"({type(raw).__name__}) {shown_message}",)


def _message(raw: BaseException) -> str:
    return str(raw.args[0]) if raw.args else type(raw).__name__


def dsn(url: str) -> str:
    """Returns a database's URL for asyncpg itself. Asyncpg reads the options of libpq from the URL,
    and missing ones from the environment.
    """
    place, mark, query = url.partition("://")[2].partition("?")
    # SQLAlchemy uses a different name for this option.
    options = [("sslmode" if name == "ssl" else name, to) for name, to in parse_qsl(query)]
    return f"postgresql://{place}{mark}{urlencode(options)}"
