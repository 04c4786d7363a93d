from typing import Any

from sqlalchemy import JSON, ForeignKey, Index, String
from sqlalchemy.orm import Mapped, mapped_column

from stoker.store.db import Base
from stoker.store.tables.jobs import Job


class Trial(Job, Base):
    """Variants of running a deployment's model, with their measurements."""

    __tablename__ = "trials"
    __table_args__ = (Index("ix_trials_deployment_id_id", "deployment_id", "id"),)

    deployment_id: Mapped[str] = mapped_column(
        String(40), ForeignKey("deployments.id", ondelete="CASCADE")
    )
    examples: Mapped[list[dict[str, Any]] | None] = mapped_column(JSON)
    """Request bodies for the pipeline's first endpoint, until the trial has ended. None uses
    generated examples.
    """
    example_count: Mapped[int | None]
    """Number of examples. None if the request contained none."""
    engines: Mapped[list[str] | None] = mapped_column(JSON)
    dtypes: Mapped[list[str] | None] = mapped_column(JSON)
    """Precisions to which the trial is restricted. None means no restriction."""
    rows: Mapped[list[dict[str, Any]]] = mapped_column(JSON, default=list)
    """A result for each variant that was tried so far."""
