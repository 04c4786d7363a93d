"""The machines that run replicas for the servers of one PostgreSQL, and what each may run."""

from datetime import datetime

from sqlalchemy import JSON, BigInteger, Boolean, ForeignKey, Integer, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from stoker.store.db import Base, UtcDateTime


class Node(Base):
    """A node host that is at work, or was until its heartbeat ended."""

    __tablename__ = "nodes"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    name: Mapped[str] = mapped_column(String(128))
    address: Mapped[str] = mapped_column(String(272))
    """`host:port`, where servers reach it."""
    certificate: Mapped[str] = mapped_column(Text)
    """What it shows them, in PEM: made anew at each start."""
    pid: Mapped[int] = mapped_column(Integer)
    version: Mapped[str] = mapped_column(String(64))
    """Of Stoker."""
    python: Mapped[str] = mapped_column(String(64))
    is_draining: Mapped[bool] = mapped_column(Boolean)
    """It gets no new leases."""
    machine: Mapped[dict[str, int]] = mapped_column(JSON)
    """`cores`, `total_bytes`, `budget_bytes`, `held_bytes`, `reserved_bytes`, as of `seen_at`."""
    started_at: Mapped[datetime] = mapped_column(UtcDateTime)
    seen_at: Mapped[datetime] = mapped_column(UtcDateTime)
    """By the database's clock."""


class Lease(Base):
    """A node's leave to run what a specification describes."""

    __tablename__ = "leases"

    generation: Mapped[int] = mapped_column(
        BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True
    )
    """Grows with each lease there ever was: whoever sends work names it, and a node refuses that
    of an older one."""
    spec_id: Mapped[str] = mapped_column(String(40), index=True)
    node_id: Mapped[str | None] = mapped_column(
        ForeignKey("nodes.id", ondelete="CASCADE"), index=True
    )
    """None: it waits to be placed."""
    deployment_id: Mapped[str] = mapped_column(String(40))
    """No foreign key: trials run what is no deployment."""
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    # What follows is for whoever places leases, where servers do not choose nodes themselves.
    memory_bytes: Mapped[int] = mapped_column(BigInteger, default=0)
    """What its replicas take together, as far as is known."""
    needs_device: Mapped[bool] = mapped_column(Boolean, default=False)
    """Whether its node is to have a graphics device."""
    prefers: Mapped[str | None] = mapped_column(String(40))
    """The id of the node that a server would choose, which may be gone."""
    may_evict: Mapped[bool] = mapped_column(Boolean, default=True)
    """Whether others may have to go for it."""
    is_kept: Mapped[bool] = mapped_column(Boolean, default=False)
    """Whether others go first."""
    idle_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    """Since when nobody has called it, by the database's clock; None: it may not be taken away."""
    problem: Mapped[str | None] = mapped_column(Text)
    """Why it is not placed."""
