"""Kinds of jobs: the work that a runner does for one table."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from stoker.base.errors import (
    StokerError,
)
from stoker.runtime.interface import OnProgress
from stoker.store.db import Session
from stoker.store.tables.jobs import Job

Row = TypeVar("Row", bound=Job)
Made = TypeVar("Made")


class YieldedError(Exception):
    """Raised by `JobKind.perform` to yield the job's place to another account. See
    `should_yield`.
    """


@dataclass(frozen=True)
class Outcome:
    """State of a row after its work was done."""

    values: Mapping[str, Any]
    """Values of the kind's own columns."""
    waits_as: str | None = None
    """Status in which the row waits until it is made due again. `JobKind.ended` is then not called.
    None means that the row is completed.
    """


class JobKind(Protocol[Row, Made]):
    """A kind of job."""

    table: type[Row]

    async def perform(self, row: Row, on_progress: OnProgress) -> Made:
        """Does the work, outside the database. May be called again for the same row, on any
        server.
        """
        ...

    def outcome(self, row: Row, made: Made) -> Outcome: ...

    async def keep(self, session: Session, row: Row, made: Made) -> None:
        """Stores the result next to the row, in the transaction that completes or parks it."""
        ...

    async def ended(self, session: Session, row: Row, error: StokerError | None) -> None:
        """Cleans up what only the work needed, in the transaction that ends the row with success or
        an error.
        """
        ...

    async def discard(self, made: Made) -> None:
        """Drops the result, because the job was deleted or another server holds it."""
        ...
