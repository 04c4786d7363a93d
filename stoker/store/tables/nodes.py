"""Nodes that run replicas for the servers of one PostgreSQL, and their leases."""

from datetime import datetime

from sqlalchemy import JSON, BigInteger, Boolean, ForeignKey, Integer, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from stoker.store.db import Base, UtcDateTime


class Node(Base):
    """A node host that is active, or was until its heartbeat ended."""

    __tablename__ = "nodes"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    name: Mapped[str] = mapped_column(String(128))
    address: Mapped[str] = mapped_column(String(272))
    """Address `host:port` for servers."""
    certificate: Mapped[str] = mapped_column(Text)
    """Certificate for servers, in PEM. A new one is created at each start."""
    pid: Mapped[int] = mapped_column(Integer)
    version: Mapped[str] = mapped_column(String(64))
    """Version of Stoker."""
    python: Mapped[str] = mapped_column(String(64))
    is_draining: Mapped[bool] = mapped_column(Boolean)
    """True if the node receives no new leases."""
    machine: Mapped[dict[str, int]] = mapped_column(JSON)
    """`cores`, `total_bytes`, `budget_bytes`, `held_bytes`, `reserved_bytes`, as of `seen_at`."""
    started_at: Mapped[datetime] = mapped_column(UtcDateTime)
    seen_at: Mapped[datetime] = mapped_column(UtcDateTime)
    """Time of the last heartbeat by the database's clock."""
    schema_revision: Mapped[str] = mapped_column(String(32), server_default="")
    """Newest revision of the schema that its release knows."""


class Lease(Base):
    """Permission of a node to run the deployment of a specification."""

    __tablename__ = "leases"

    generation: Mapped[int] = mapped_column(
        BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True
    )
    """Number that increases with each new lease. Servers name it in each request, and a node
    rejects an older one.
    """
    spec_id: Mapped[str] = mapped_column(String(40), index=True)
    node_id: Mapped[str | None] = mapped_column(
        ForeignKey("nodes.id", ondelete="CASCADE"), index=True
    )
    """Node of the lease. None while it waits to be placed."""
    deployment_id: Mapped[str] = mapped_column(String(40))
    """Id without a foreign key, because trials run without a deployment."""
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    # The following columns are for the placer, if servers do not choose nodes themselves.
    memory_bytes: Mapped[int] = mapped_column(BigInteger, default=0)
    """Total memory of its replicas in bytes, as known so far."""
    needs_device: Mapped[bool] = mapped_column(Boolean, default=False)
    """True if its node must have a graphics device."""
    prefers: Mapped[str | None] = mapped_column(String(40))
    """Id of the node that a server would choose. The node may no longer exist."""
    may_evict: Mapped[bool] = mapped_column(Boolean, default=True)
    """True if other leases may be evicted for it."""
    is_kept: Mapped[bool] = mapped_column(Boolean, default=False)
    """True if other leases are evicted before it."""
    idle_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    """Start of the idle time by the database's clock. None if the lease must not be evicted."""
    problem: Mapped[str | None] = mapped_column(Text)
    """Reason why the lease is not placed."""
