from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import JSON, BigInteger, ForeignKey, Index, LargeBinary, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from stoker.store.db import Base, UtcDateTime


class ArtifactStatus(StrEnum):
    CREATED = "created"
    UPLOADING = "uploading"
    INGESTING = "ingesting"
    READY = "ready"
    FAILED = "failed"


class UploadStatus(StrEnum):
    OPEN = "open"
    INGESTING = "ingesting"
    READY = "ready"
    FAILED = "failed"
    SUPERSEDED = "superseded"
    ABANDONED = "abandoned"
    EXPIRED = "expired"


CLOSED = (UploadStatus.SUPERSEDED, UploadStatus.ABANDONED, UploadStatus.EXPIRED)
"""A session in one of these is over without a result; only its id is remembered."""


class Artifact(Base):
    __tablename__ = "artifacts"
    __table_args__ = (Index("ix_artifacts_account_id_id", "account_id", "id"),)

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    account_id: Mapped[str] = mapped_column(String(40), ForeignKey("accounts.id"))
    display_name: Mapped[str] = mapped_column(String(128))
    # What the owner asked for; `pipeline` is what inspection settled on.
    requested_pipeline: Mapped[str | None] = mapped_column(String(64))
    pipeline: Mapped[str | None] = mapped_column(String(64))
    status: Mapped[str] = mapped_column(String(16))
    failure_code: Mapped[str | None] = mapped_column(String(64))
    failure_message: Mapped[str | None] = mapped_column(Text)
    size_bytes: Mapped[int] = mapped_column(BigInteger, default=0)
    # The upload whose files deployments use; None until a first one was found sound.
    live_upload_id: Mapped[str | None] = mapped_column(String(40))
    # The session that is open or ingesting.
    open_upload_id: Mapped[str | None] = mapped_column(String(40))
    inspection: Mapped[dict[str, Any] | None] = mapped_column(JSON)
    origin: Mapped[dict[str, Any] | None] = mapped_column(JSON)
    """Where the live files come from: `hub`, `repo_id`, `revision`, `commit`; None: an upload."""
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime)


class Upload(Base):
    __tablename__ = "uploads"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    artifact_id: Mapped[str] = mapped_column(
        String(40), ForeignKey("artifacts.id", ondelete="CASCADE"), index=True
    )
    status: Mapped[str] = mapped_column(String(16), index=True)
    part_size: Mapped[int] = mapped_column(BigInteger)
    declared_bytes: Mapped[int | None] = mapped_column(BigInteger)
    """What its client has said that its files will have together: kept for it from the start."""
    # Files begun so far, the number in the next one's blob key: no key is ever used twice, so that
    # a late writer to a file that was replaced harms nothing.
    files_begun: Mapped[int] = mapped_column(default=0)
    origin: Mapped[dict[str, Any] | None] = mapped_column(JSON)
    """What becomes the artifact's, once these are its files."""
    server_id: Mapped[str | None] = mapped_column(String(40))
    """Of one that is ingesting: which server inspects it."""
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    expires_at: Mapped[datetime] = mapped_column(UtcDateTime)
    completed_at: Mapped[datetime | None] = mapped_column(UtcDateTime)


class UploadFile(Base):
    __tablename__ = "upload_files"

    upload_id: Mapped[str] = mapped_column(
        String(40), ForeignKey("uploads.id", ondelete="CASCADE"), primary_key=True
    )
    path: Mapped[str] = mapped_column(String(255), primary_key=True)
    # Chosen by the server: a client's path never becomes a part of a key.
    blob_key: Mapped[str] = mapped_column(String(128))
    # As the client told it; None where it did not, until the session is completed.
    size: Mapped[int | None] = mapped_column(BigInteger)
    # A whole file of untold length is on its way, or broke off: its end has not been seen.
    end_awaited: Mapped[bool] = mapped_column(default=False)
    # Known of a file of one part, or one that came whole with a digest; parts have their own.
    sha256: Mapped[bytes | None] = mapped_column(LargeBinary(32))


class UploadPart(Base):
    """A part that is durable. Its place in the file is `(number - 1) * part_size`."""

    __tablename__ = "upload_parts"

    upload_id: Mapped[str] = mapped_column(
        String(40), ForeignKey("uploads.id", ondelete="CASCADE"), primary_key=True
    )
    path: Mapped[str] = mapped_column(String(255), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    size: Mapped[int] = mapped_column(BigInteger)
    sha256: Mapped[bytes] = mapped_column(LargeBinary(32))
