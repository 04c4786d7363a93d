from typing import Any

from sqlalchemy import JSON, ForeignKey, Index, String
from sqlalchemy.orm import Mapped, mapped_column

from stoker.store.db import Base
from stoker.store.tables.jobs import Job


class Trial(Job, Base):
    """Ways of running a deployment's model to be measured, and what was found."""

    __tablename__ = "trials"
    __table_args__ = (Index("ix_trials_deployment_id_id", "deployment_id", "id"),)

    deployment_id: Mapped[str] = mapped_column(
        String(40), ForeignKey("deployments.id", ondelete="CASCADE")
    )
    examples: Mapped[list[dict[str, Any]] | None] = mapped_column(JSON)
    """Request bodies of the pipeline's first endpoint, until it has ended; None: those that we make
    up."""
    example_count: Mapped[int | None]
    """How many there were; None: none were given."""
    engines: Mapped[list[str] | None] = mapped_column(JSON)
    dtypes: Mapped[list[str] | None] = mapped_column(JSON)
    """What it is restricted to; None: nothing."""
    rows: Mapped[list[dict[str, Any]]] = mapped_column(JSON, default=list)
    """A line for each way that was tried so far."""
