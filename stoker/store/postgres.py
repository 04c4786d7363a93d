"""PostgreSQL for SQLAlchemy: by URLs as its own tools read them, and a connection that was used a
moment ago is not asked whether it is there.

SQLAlchemy's own way to ask (`pool_pre_ping`) is three trips to the server before each transaction:
as many as a short one takes itself. A server that has ended, or was restarted, has closed its
connections, which the driver knows without a word. What only asking tells, such as of a firewall
that has forgotten a connection, takes longer to come about than `TRUST_S`.
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
"""What was used so lately is not asked whether it is there."""
_PATIENCE: dict[str, Any] = {
    "timeout": 10.0,
    "command_timeout": 30.0,
    # Who stands still must not keep what others wait for.
    "server_settings": {"idle_in_transaction_session_timeout": "60000"},
}
"""Of asyncpg, seconds and milliseconds: a database that is there and does not answer ends nothing
else.
"""
_DRIVER = "postgresql+asyncpg://"
_USED_AT = "used_at"


def create_engine(
    url: str, connections: int, clock: Callable[[], float] = time.monotonic
) -> AsyncEngine:
    """
    Args:
        url: `postgresql+asyncpg://…`, with the options of libpq.
        connections: at most; those that were used last are taken first.
    """
    kept = min(5, connections)
    engine = create_async_engine(
        _DRIVER,
        pool_size=kept,
        max_overflow=connections - kept,
        pool_use_lifo=True,
        connect_args={"dsn": dsn(url), **_PATIENCE},
        # They are what clients have sent: errors and logs must not repeat them.
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
            # It has just been made.
            return
        # SQLAlchemy has a new one made, in place of this and of all others.
        if connection.driver_connection.is_closed():
            raise InvalidatePoolError
        if clock() - used_at > TRUST_S:
            try:
                engine.dialect.do_ping(connection)
            except Exception as error:
                raise InvalidatePoolError from error

    return engine


def patient_engine(url: str) -> AsyncEngine:
    """For what may take long, and waits for others who do."""
    engine = create_async_engine(
        _DRIVER, poolclass=NullPool, connect_args={"dsn": dsn(url)}, hide_parameters=True
    )
    event.listen(engine.sync_engine, "handle_error", _redact)
    return engine


def _redact(context: ExceptionContext) -> None:
    """Removes the values of rows from an error, and from the errors that it was made of.

    PostgreSQL quotes a row that breaks a constraint (`DETAIL: Failing row contains (…)`), and the
    driver a parameter that it cannot encode. All of it would be logged.
    """
    translated = context.original_exception
    raw = translated.__cause__
    if raw is None or not type(raw).__module__.startswith("asyncpg"):
        return
    state = str(getattr(raw, "sqlstate", None) or "")
    # Data errors, class 22, quote the data in their message.
    quotes_values = state.startswith("22") or isinstance(raw, ValueError)
    kept = "its message is not shown: it quotes data" if quotes_values else _message(raw)
    for name in ("detail", "hint", "context", "internal_query"):
        if hasattr(raw, name):
            setattr(raw, name, None)
    raw.args = (kept,)
    # What an encoder of the driver has said quotes the value, too.
    raw.__cause__ = raw.__context__ = None
    translated.args = (f"{type(raw)}: {kept}",)
    if (error := context.sqlalchemy_exception) is not None:
        error.args = (f"({type(raw).__name__}) {kept}",)


def _message(raw: BaseException) -> str:
    return str(raw.args[0]) if raw.args else type(raw).__name__


def dsn(url: str) -> str:
    """A database's URL for asyncpg itself, which reads the options of libpq in it, and of the
    environment what is not in it.
    """
    place, mark, query = url.partition("://")[2].partition("?")
    # SQLAlchemy has another name for it.
    options = [("sslmode" if name == "ssl" else name, to) for name, to in parse_qsl(query)]
    return f"postgresql://{place}{mark}{urlencode(options)}"
