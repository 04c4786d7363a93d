"""What makes a row a job."""

from datetime import datetime
from enum import StrEnum

from sqlalchemy import Float, ForeignKey, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from stoker.store.db import UtcDateTime


class JobStatus(StrEnum):
    QUEUED = "queued"
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    FAILED = "failed"

    @property
    def is_finished(self) -> bool:
        return self in (JobStatus.COMPLETED, JobStatus.FAILED)


UNFINISHED = (JobStatus.QUEUED.value, JobStatus.IN_PROGRESS.value)


class Job:
    """A mixin for tables whose rows are worked on once, to an end, whatever dies meanwhile.

    A server leases a row: it writes a token of its own and renews the lease's end while it works.
    Whoever finds the lease run out takes the row over with another token, and everything that the
    first one still writes names the old token and so changes nothing.
    """

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    account_id: Mapped[str] = mapped_column(String(40), ForeignKey("accounts.id"))
    deployment_id: Mapped[str] = mapped_column(String(40), index=True)
    status: Mapped[str] = mapped_column(String(16), index=True)
    progress: Mapped[float] = mapped_column(Float, default=0.0)
    """0 to 1."""
    error_code: Mapped[str | None] = mapped_column(String(64))
    error_message: Mapped[str | None] = mapped_column(Text)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    completed_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    """When it ended, in either way."""
    tries: Mapped[int] = mapped_column(default=0)
    """How often work on it was begun."""
    losses: Mapped[int] = mapped_column(default=0)
    """How often its worker was lost, or could not be had."""
    not_before: Mapped[datetime | None] = mapped_column(UtcDateTime)
    """After a lost worker: when to try again."""
    lock_token: Mapped[str | None] = mapped_column(String(32))
    lock_expires_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
