from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import JSON, BigInteger, Float, ForeignKey, Index, String, Text, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from stoker.store.db import Base, UtcDateTime


class Desired(StrEnum):
    RUNNING = "running"
    STOPPED = "stopped"


class Deployment(Base):
    __tablename__ = "deployments"
    __table_args__ = (UniqueConstraint("account_id", "model", name="uq_deployments_account_model"),)

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    account_id: Mapped[str] = mapped_column(String(40), ForeignKey("accounts.id"))
    model: Mapped[str] = mapped_column(String(128))
    pipeline: Mapped[str] = mapped_column(String(64))
    artifact_id: Mapped[str | None] = mapped_column(
        String(40), ForeignKey("artifacts.id"), index=True
    )
    upload_id: Mapped[str | None] = mapped_column(String(40))
    source: Mapped[str | None] = mapped_column(String(1024))
    readiness: Mapped[str] = mapped_column(String(8))
    engine: Mapped[str] = mapped_column(String(32))
    device: Mapped[str] = mapped_column(String(16))
    dtype: Mapped[str] = mapped_column(String(16))
    min_replicas: Mapped[int]
    max_replicas: Mapped[int]
    idle_timeout_s: Mapped[float] = mapped_column(Float)
    max_queue: Mapped[int]
    config: Mapped[dict[str, Any]] = mapped_column(JSON, default=dict)
    memory_bytes: Mapped[int | None] = mapped_column(BigInteger)
    """What one replica needs, as far as is known."""
    is_measured: Mapped[bool] = mapped_column(default=False)
    """Whether that was measured; else it is an estimate."""
    desired: Mapped[str] = mapped_column(String(16))
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime)


class DeploymentEvent(Base):
    """A change of a deployment's observed state."""

    __tablename__ = "deployment_events"
    __table_args__ = (Index("ix_deployment_events_deployment_id_id", "deployment_id", "id"),)

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    deployment_id: Mapped[str] = mapped_column(
        String(40), ForeignKey("deployments.id", ondelete="CASCADE")
    )
    status: Mapped[str] = mapped_column(String(16))
    reason: Mapped[str] = mapped_column(String(32))
    message: Mapped[str] = mapped_column(Text)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
