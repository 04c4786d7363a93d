from datetime import datetime
from typing import Any

from sqlalchemy import JSON, BigInteger, ForeignKey, Index, String, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from stoker.store.db import Base, UtcDateTime
from stoker.store.open_enum import OpenEnum
from stoker.store.tables.jobs import Job


class BatchState(OpenEnum):
    VALIDATING = "validating"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    FAILED = "failed"
    EXPIRED = "expired"
    CANCELLED = "cancelled"


class Batch(Job, Base):
    """A file of requests to one deployment, answered in the background.

    Only the holder of the lease writes `state` and the counts. `cancelling_at` is written by the
    client's request.
    """

    __tablename__ = "batches"
    __table_args__ = (Index("ix_batches_account_id_id", "account_id", "id"),)

    # Releases without this table delete accounts, too.
    account_id: Mapped[str] = mapped_column(
        String(40), ForeignKey("accounts.id", ondelete="CASCADE")
    )
    key_id: Mapped[str] = mapped_column(String(40))
    key: Mapped[str] = mapped_column(String(40))
    """Public id of the key that created the batch."""
    deployment_ids: Mapped[list[str] | None] = mapped_column(JSON)
    """Deployments that the key covers. None means all of the account."""
    state: Mapped[str] = mapped_column(String(16))
    ending: Mapped[str | None] = mapped_column(String(32))
    """`Ending` of the run, set while the batch is finalized."""
    endpoint: Mapped[str] = mapped_column(String(128))
    # No foreign key: the batch outlives the file.
    input_file_id: Mapped[str] = mapped_column(String(40))
    custom_metadata: Mapped[dict[str, str] | None] = mapped_column(JSON)
    output_keep_s: Mapped[int | None]
    """Seconds from the creation of the result files to their expiry. None means the default."""
    model: Mapped[str | None] = mapped_column(String(128))
    total: Mapped[int] = mapped_column(default=0)
    completed: Mapped[int] = mapped_column(default=0)
    failed: Mapped[int] = mapped_column(default=0)
    input_tokens: Mapped[int] = mapped_column(BigInteger, default=0)
    cached_tokens: Mapped[int] = mapped_column(BigInteger, default=0)
    output_tokens: Mapped[int] = mapped_column(BigInteger, default=0)
    reasoning_tokens: Mapped[int] = mapped_column(BigInteger, default=0)
    usage_rows: Mapped[dict[str, str]] = mapped_column(JSON, default=dict)
    """Maps a version and an hour to the id of the row that counts the batch's calls."""
    errors: Mapped[list[dict[str, Any]] | None] = mapped_column(JSON)
    paused: Mapped[dict[str, str] | None] = mapped_column(JSON)
    """`code` and `message` of the reason why the batch waits."""
    output_file_id: Mapped[str | None] = mapped_column(String(40))
    error_file_id: Mapped[str | None] = mapped_column(String(40))
    in_progress_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    finalizing_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    cancelling_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    expires_at: Mapped[datetime] = mapped_column(UtcDateTime)


class BatchPart(Base):
    """Durable answers to some lines of a batch.

    Its row and the batch's counts are written in one transaction. A line is done if a part contains
    it.
    """

    __tablename__ = "batch_parts"
    __table_args__ = (UniqueConstraint("batch_id", "number", name="uq_batch_parts_batch_number"),)

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    batch_id: Mapped[str] = mapped_column(String(40), ForeignKey("batches.id", ondelete="CASCADE"))
    number: Mapped[int]
    lines: Mapped[list[list[int]]] = mapped_column(JSON)
    """Line numbers, as ranges with their first and last number."""
    output_bytes: Mapped[int] = mapped_column(BigInteger)
    """Bytes of the blob with lines of the output file. Lines of the error file follow."""
    error_bytes: Mapped[int] = mapped_column(BigInteger)

    @property
    def blob_key(self) -> str:
        return f"batches/{self.batch_id}/{self.id}"
