from datetime import UTC, datetime

from sqlalchemy import BigInteger, ForeignKey, Index, String
from sqlalchemy.orm import Mapped, mapped_column

from stoker.store.db import Base, UtcDateTime
from stoker.store.open_enum import OpenEnum


class Purpose(OpenEnum):
    IMAGE = "image"
    VIDEO = "video"
    THUMBNAIL = "thumbnail"
    REFERENCE = "reference"
    """Input file of a job, provided by the client."""
    BATCH = "batch"
    """Input of a batch, uploaded by a client."""
    USER_DATA = "user_data"
    """Any other upload of a client."""
    BATCH_OUTPUT = "batch_output"
    """Results or errors of a batch."""


NEVER = datetime(9999, 12, 31, tzinfo=UTC)
"""`expires_at` of files that do not expire. Older releases need a value in this column."""


class FileUploadStatus(OpenEnum):
    PENDING = "pending"
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


class File(Base):
    """A generated file, an upload of a client, or the input of a job. Kept until it expires."""

    __tablename__ = "files"
    __table_args__ = (Index("ix_files_account_id_id", "account_id", "id"),)

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    account_id: Mapped[str] = mapped_column(String(40), ForeignKey("accounts.id"))
    # No foreign key: files outlive their deployment.
    deployment_id: Mapped[str] = mapped_column(String(40))
    """Deployment that generated the file. Empty for uploads of clients."""
    # No foreign key: files outlive their key.
    key_id: Mapped[str | None] = mapped_column(String(40))
    """Key that uploaded the file, or that requested a batch's output."""
    owner_id: Mapped[str | None] = mapped_column(String(40), index=True)
    """Job that owns the file, if any."""
    purpose: Mapped[str] = mapped_column(String(16))
    content_type: Mapped[str] = mapped_column(String(64))
    filename: Mapped[str | None] = mapped_column(String(255))
    """Name that the client chose. None for generated files, which are named by their id. Never a
    path.
    """
    size: Mapped[int] = mapped_column(BigInteger)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    expires_at: Mapped[datetime] = mapped_column(UtcDateTime, index=True)

    @property
    def blob_key(self) -> str:
        return f"files/{self.id}"


class FileUpload(Base):
    """An upload of one file in parts. Its bytes become a `File` when it is completed."""

    __tablename__ = "file_uploads"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    # Releases without this table delete accounts, too.
    account_id: Mapped[str] = mapped_column(
        String(40), ForeignKey("accounts.id", ondelete="CASCADE"), index=True
    )
    key_id: Mapped[str | None] = mapped_column(String(40))
    status: Mapped[str] = mapped_column(String(16))
    purpose: Mapped[str] = mapped_column(String(16))
    content_type: Mapped[str] = mapped_column(String(64))
    filename: Mapped[str] = mapped_column(String(255))
    size: Mapped[int] = mapped_column(BigInteger)
    """Declared bytes of the whole file. This space is reserved while the upload is pending."""
    keep_s: Mapped[int | None]
    """Seconds from completion to the file's expiry, if the client chose them."""
    file_id: Mapped[str | None] = mapped_column(String(40))
    """File that the completed upload became."""
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    expires_at: Mapped[datetime] = mapped_column(UtcDateTime, index=True)


class FileUploadPart(Base):
    """A durable part of an upload. Its place in the file is known when the upload is completed."""

    __tablename__ = "file_upload_parts"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    upload_id: Mapped[str] = mapped_column(
        String(40), ForeignKey("file_uploads.id", ondelete="CASCADE"), index=True
    )
    size: Mapped[int] = mapped_column(BigInteger)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)

    @property
    def blob_key(self) -> str:
        return f"file-parts/{self.id}"
