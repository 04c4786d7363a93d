from sqlalchemy import BigInteger, ForeignKey, Index, LargeBinary, String, false
from sqlalchemy.orm import Mapped, mapped_column

from stoker.store.db import Base
from stoker.store.open_enum import OpenEnum
from stoker.store.tables.jobs import Job


class ResponseStatus(OpenEnum):
    """Statuses of a job, and one that only responses have."""

    QUEUED = "queued"
    IN_PROGRESS = "in_progress"
    CANCELLED = "cancelled"
    COMPLETED = "completed"
    FAILED = "failed"


class StoredResponse(Job, Base):
    """A stored response. Its content is sealed with its own key: when this row is deleted, every
    copy of the content becomes unreadable.
    """

    __tablename__ = "responses"
    __table_args__ = (
        Index("ix_responses_account_id_id", "account_id", "id"),
        Index("ix_responses_created_at", "created_at"),
        Index("ix_responses_stored_bytes", "account_id", "stored_bytes", "event_bytes"),
    )

    # Releases without this table delete accounts, too.
    account_id: Mapped[str] = mapped_column(
        String(40), ForeignKey("accounts.id", ondelete="CASCADE")
    )
    api_key: Mapped[str] = mapped_column(String(32), index=True)
    """Public id of the key that created it."""
    model: Mapped[str] = mapped_column(String(128))
    parent_id: Mapped[str | None] = mapped_column(String(40))
    """Response that it continues."""
    is_background: Mapped[bool]
    content_key: Mapped[bytes] = mapped_column(LargeBinary)
    request: Mapped[bytes] = mapped_column(LargeBinary)
    """Sealed request."""
    answer: Mapped[bytes] = mapped_column(LargeBinary)
    """Sealed response as clients receive it."""
    stored_bytes: Mapped[int] = mapped_column(BigInteger)
    """Size of request and answer."""
    event_bytes: Mapped[int] = mapped_column(BigInteger, default=0, server_default="0")
    """Size of the events."""
    is_followed: Mapped[bool] = mapped_column(default=False, server_default=false())
    """True once a client may have received stored events. They must not change any more."""


class ResponseEvents(Base):
    """Consecutive events of a background response, from its first output on."""

    __tablename__ = "response_events"

    response_id: Mapped[str] = mapped_column(
        String(40), ForeignKey("responses.id", ondelete="CASCADE"), primary_key=True
    )
    last: Mapped[int] = mapped_column(primary_key=True)
    """Sequence number of the last of these events."""
    events: Mapped[bytes] = mapped_column(LargeBinary)
    """Sealed list of types and fields."""
