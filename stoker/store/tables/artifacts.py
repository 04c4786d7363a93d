from datetime import datetime
from typing import Any

from sqlalchemy import JSON, BigInteger, ForeignKey, Index, LargeBinary, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from stoker.store.db import Base, UtcDateTime
from stoker.store.open_enum import OpenEnum


class ArtifactStatus(OpenEnum):
    CREATED = "created"
    UPLOADING = "uploading"
    INGESTING = "ingesting"
    READY = "ready"
    FAILED = "failed"


class UploadStatus(OpenEnum):
    OPEN = "open"
    INGESTING = "ingesting"
    READY = "ready"
    FAILED = "failed"
    SUPERSEDED = "superseded"
    ABANDONED = "abandoned"
    EXPIRED = "expired"


CLOSED = (UploadStatus.SUPERSEDED, UploadStatus.ABANDONED, UploadStatus.EXPIRED)
"""Statuses of a session that ended without a result. Only its id is kept."""


class Artifact(Base):
    __tablename__ = "artifacts"
    __table_args__ = (Index("ix_artifacts_account_id_id", "account_id", "id"),)

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    account_id: Mapped[str] = mapped_column(String(40), ForeignKey("accounts.id"))
    display_name: Mapped[str] = mapped_column(String(128))
    # The owner's choice. `pipeline` is the result of the inspection.
    requested_pipeline: Mapped[str | None] = mapped_column(String(64))
    pipeline: Mapped[str | None] = mapped_column(String(64))
    status: Mapped[str] = mapped_column(String(16))
    failure_code: Mapped[str | None] = mapped_column(String(64))
    failure_message: Mapped[str | None] = mapped_column(Text)
    size_bytes: Mapped[int] = mapped_column(BigInteger, default=0)
    # Upload with the files that deployments use. None until a first upload has passed inspection.
    live_upload_id: Mapped[str | None] = mapped_column(String(40))
    # The session that is open or ingesting.
    open_upload_id: Mapped[str | None] = mapped_column(String(40))
    inspection: Mapped[dict[str, Any] | None] = mapped_column(JSON)
    origin: Mapped[dict[str, Any] | None] = mapped_column(JSON)
    """Source of the live files: `hub`, `repo_id`, `revision`, `commit`. None for an upload."""
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
    """Total size of all files as declared by the client. This space is reserved from the start."""
    # Number of files begun so far, which is part of the next file's blob key. No key is used twice,
    # so that a late writer to a replaced file does no harm.
    files_begun: Mapped[int] = mapped_column(default=0)
    origin: Mapped[dict[str, Any] | None] = mapped_column(JSON)
    """Origin that the artifact receives when these files become live."""
    server_id: Mapped[str | None] = mapped_column(String(40))
    """Server that inspects this upload while it is ingesting."""
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
    # Size as declared by the client. If not declared, None until the session is completed.
    size: Mapped[int | None] = mapped_column(BigInteger)
    # True while a file of unknown length is being received in one request, or after that was
    # interrupted: the end of the file is not known.
    end_awaited: Mapped[bool] = mapped_column(default=False)
    # Known for a file of one part, or one received in a single request with a digest. Parts have
    # their own.
    sha256: Mapped[bytes | None] = mapped_column(LargeBinary(32))


class UploadPart(Base):
    """A durable part. Its offset in the file is `(number - 1) * part_size`."""

    __tablename__ = "upload_parts"

    upload_id: Mapped[str] = mapped_column(
        String(40), ForeignKey("uploads.id", ondelete="CASCADE"), primary_key=True
    )
    path: Mapped[str] = mapped_column(String(255), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    size: Mapped[int] = mapped_column(BigInteger)
    sha256: Mapped[bytes] = mapped_column(LargeBinary(32))
