from datetime import datetime

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


class File(Base):
    """A generated file or the input of a job, kept until it expires."""

    __tablename__ = "files"
    __table_args__ = (Index("ix_files_account_id_id", "account_id", "id"),)

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    account_id: Mapped[str] = mapped_column(String(40), ForeignKey("accounts.id"))
    # No foreign key: files outlive their deployment.
    deployment_id: Mapped[str] = mapped_column(String(40))
    owner_id: Mapped[str | None] = mapped_column(String(40), index=True)
    """Job that owns the file, if any."""
    purpose: Mapped[str] = mapped_column(String(16))
    content_type: Mapped[str] = mapped_column(String(64))
    size: Mapped[int] = mapped_column(BigInteger)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    expires_at: Mapped[datetime] = mapped_column(UtcDateTime, index=True)

    @property
    def blob_key(self) -> str:
        return f"files/{self.id}"
