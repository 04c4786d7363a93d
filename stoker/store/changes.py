"""Records the changes by transactions of this process and notifies a listener.

Changes of rows in the session are recorded when the session writes them. Changes by other
statements are recorded by `note`. Without a listener the cost is one attribute check.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session, UOWTransaction

log = logging.getLogger(__name__)

_CHANGES, _NOTED = "stoker.changes", "stoker.noted"


@dataclass(frozen=True)
class Change:
    table: type[Any]
    id: str
    """Id of the row. Empty if the row has none."""
    account_id: str | None = None
    """Account of the row, if known. Always set for a deleted row with an account."""
    row: Any = None
    """Row as it was written. For a change by a statement, the row before the change, if known."""
    is_deleted: bool = False


class Changes:
    def __init__(self) -> None:
        self._listener: Callable[[Sequence[Change]], None] | None = None

    @property
    def is_heard(self) -> bool:
        return self._listener is not None

    def listen(self, listener: Callable[[Sequence[Change]], None] | None) -> None:
        """Sets the listener that receives each transaction's changes once they are durable. None
        removes it.

        The listener is called on the event loop and must not block.
        """
        self._listener = listener

    def watch(self, session: AsyncSession) -> None:
        """Starts recording the changes of a session."""
        session.info[_CHANGES] = self

    def announce(self, changes: Sequence[Change]) -> None:
        """Passes on changes by another server."""
        if self._listener:
            self._listener(changes)

    def tell(self, session: AsyncSession) -> None:
        """Passes on the changes of a session after its transaction has committed."""
        noted: list[Change] | None = session.info.pop(_NOTED, None)
        if noted and self._listener:
            try:
                self._listener(noted)
            except Exception:
                # The transaction is committed despite the error.
                log.exception("change listener failed")


class WatchedSession(Session):
    """Session that records its writes if a listener is set."""


def note(
    session: AsyncSession,
    table: type[Any],
    identifier: str,
    account_id: str | None = None,
    row: Any = None,
    *,
    is_deleted: bool = False,
) -> None:
    """Records that a statement of this transaction changes or deletes a row which the session does
    not track.
    """
    changes: Changes | None = session.info.get(_CHANGES)
    if changes is not None and changes.is_heard:
        change = Change(table, identifier, account_id, row, is_deleted)
        session.info.setdefault(_NOTED, []).append(change)


@event.listens_for(WatchedSession, "after_flush")
def _flushed(session: Session, _flush: UOWTransaction) -> None:
    changes: Changes | None = session.info.get(_CHANGES)
    if changes is None or not changes.is_heard:
        return
    noted: list[Change] = session.info.setdefault(_NOTED, [])
    for rows, is_deleted in ((session.new, False), (session.dirty, False), (session.deleted, True)):
        for row in rows:
            table = cast("type[Any]", type(row))
            identifier, account_id = getattr(row, "id", ""), getattr(row, "account_id", None)
            noted.append(Change(table, identifier, account_id, row, is_deleted))
