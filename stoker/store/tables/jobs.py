"""Columns of tables with jobs."""

from datetime import datetime

from sqlalchemy import Float, ForeignKey, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from stoker.store.db import UtcDateTime
from stoker.store.open_enum import OpenEnum


class JobStatus(OpenEnum):
    QUEUED = "queued"
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    FAILED = "failed"

    @property
    def is_finished(self) -> bool:
        return self in (JobStatus.COMPLETED, JobStatus.FAILED)


UNFINISHED = (JobStatus.QUEUED.value, JobStatus.IN_PROGRESS.value)


class Job:
    """Mixin for tables with rows that are processed once, to completion, even if servers crash.

    A server leases a row: it writes its own token and renews the lease while it works. If the lease
    expires, another server takes over the row with a new token. All later writes by the first
    server name the old token and change nothing.
    """

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    account_id: Mapped[str] = mapped_column(String(40), ForeignKey("accounts.id"))
    deployment_id: Mapped[str] = mapped_column(String(40), index=True)
    status: Mapped[str] = mapped_column(String(16), index=True)
    progress: Mapped[float] = mapped_column(Float, default=0.0)
    """Progress from 0 to 1."""
    error_code: Mapped[str | None] = mapped_column(String(64))
    error_message: Mapped[str | None] = mapped_column(Text)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    completed_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    """Time of completion or failure."""
    tries: Mapped[int] = mapped_column(default=0)
    """Number of attempts."""
    losses: Mapped[int] = mapped_column(default=0)
    """Number of attempts with a worker that was lost or not available."""
    not_before: Mapped[datetime | None] = mapped_column(UtcDateTime)
    """Time of the next attempt after a lost worker."""
    lock_token: Mapped[str | None] = mapped_column(String(32))
    lock_expires_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
