"""What transactions of this process have changed, for whoever wants to hear of it.

Rows that the session knows are noted when it writes them; what statements change beside it is noted
by `note`. Where nobody listens, all of it is one look at an attribute.
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
    """Empty, of a row that has none."""
    account_id: str | None = None
    """As far as it is known; of what was deleted, always where it has one."""
    row: Any = None
    """As it was written; of one that a statement has changed, as it was before, if it is known."""
    is_deleted: bool = False


class Changes:
    def __init__(self) -> None:
        self._listener: Callable[[Sequence[Change]], None] | None = None

    @property
    def is_heard(self) -> bool:
        return self._listener is not None

    def listen(self, listener: Callable[[Sequence[Change]], None] | None) -> None:
        """Have one told of each transaction's changes, once they are durable; None: nobody.

        It is called on the event loop, and must not block.
        """
        self._listener = listener

    def watch(self, session: AsyncSession) -> None:
        """Note what a session changes from now on."""
        session.info[_CHANGES] = self

    def announce(self, changes: Sequence[Change]) -> None:
        """Tell of what another server has changed."""
        if self._listener:
            self._listener(changes)

    def tell(self, session: AsyncSession) -> None:
        """The session's transaction has committed."""
        noted: list[Change] | None = session.info.pop(_NOTED, None)
        if noted and self._listener:
            try:
                self._listener(noted)
            except Exception:
                # It is committed all the same.
                log.exception("change listener failed")


class WatchedSession(Session):
    """Notes what it writes, where somebody listens."""


def note(
    session: AsyncSession,
    table: type[Any],
    identifier: str,
    account_id: str | None = None,
    row: Any = None,
    *,
    is_deleted: bool = False,
) -> None:
    """A statement of this transaction changes or deletes a row that the session does not track."""
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
