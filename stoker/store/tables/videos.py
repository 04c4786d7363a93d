from datetime import datetime
from typing import Any

from sqlalchemy import JSON, Float, Index, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from stoker.store.db import Base, UtcDateTime
from stoker.store.tables.jobs import Job


class Video(Job, Base):
    """A video to be generated, with its result."""

    __tablename__ = "videos"
    __table_args__ = (Index("ix_videos_account_id_id", "account_id", "id"),)

    model: Mapped[str] = mapped_column(String(128))
    pipeline: Mapped[str] = mapped_column(String(64))
    prompt: Mapped[str] = mapped_column(Text)
    parameters: Mapped[dict[str, Any]] = mapped_column(JSON)
    """Parameters for the replica's stages."""
    seconds: Mapped[float | None] = mapped_column(Float)
    """Length of the video in seconds. None if the model's files do not define it."""
    size: Mapped[str | None] = mapped_column(String(16))
    reference_id: Mapped[str | None] = mapped_column(String(40))
    """Input file that the video starts from."""
    video_id: Mapped[str | None] = mapped_column(String(40))
    """File with the generated video."""
    thumbnail_id: Mapped[str | None] = mapped_column(String(40))
    expires_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    """Time when its files are removed."""
