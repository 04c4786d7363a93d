from datetime import datetime
from typing import Any

from sqlalchemy import JSON, BigInteger, ForeignKey, Index, String
from sqlalchemy.orm import Mapped, mapped_column

from stoker.store.db import Base, UtcDateTime


class DeploymentChecks(Base):
    """Checks of a deployment: requests with the answers that its owner expects."""

    __tablename__ = "deployment_checks"
    __table_args__ = (Index("ix_deployment_checks_stored_bytes", "deployment_id", "stored_bytes"),)

    deployment_id: Mapped[str] = mapped_column(
        String(40), ForeignKey("deployments.id", ondelete="CASCADE"), primary_key=True
    )
    checks: Mapped[list[dict[str, Any]]] = mapped_column(JSON)
    report: Mapped[dict[str, Any] | None] = mapped_column(JSON)
    """Report of the last run of these checks."""
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime)
    """Time when the checks were stored."""
    stored_bytes: Mapped[int] = mapped_column(BigInteger, default=0, server_default="0")
    """Size of checks and report, for the account's storage."""
