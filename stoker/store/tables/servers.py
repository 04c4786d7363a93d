"""What servers of one PostgreSQL tell each other. SQLite has one server, which needs none of it."""

from datetime import datetime

from sqlalchemy import JSON, BigInteger, Float, LargeBinary, String
from sqlalchemy.orm import Mapped, mapped_column

from stoker.store.db import Base, UtcDateTime


class Server(Base):
    """A server that is at work, or was until its heartbeat ended."""

    __tablename__ = "servers"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    started_at: Mapped[datetime] = mapped_column(UtcDateTime)
    seen_at: Mapped[datetime] = mapped_column(UtcDateTime)
    """By the database's clock."""
    loaded: Mapped[list[str]] = mapped_column(JSON)
    """The ids of the versions that it has replicas of."""
    host: Mapped[str] = mapped_column(String(63), server_default="")
    """The name of its machine."""
    version: Mapped[str] = mapped_column(String(40), server_default="")
    """Its release of Stoker; nothing, of one from before they were written down."""
    python: Mapped[str] = mapped_column(String(40), server_default="")


class SharedSecret(Base):
    """What all servers must have alike, and the first one has made."""

    __tablename__ = "shared_secrets"

    name: Mapped[str] = mapped_column(String(32), primary_key=True)
    value: Mapped[bytes] = mapped_column(LargeBinary)


class Revision(Base):
    """How often something has changed: counted up by the last statement of each transaction that
    does, whose lock on the row has numbers become visible in their order.
    """

    __tablename__ = "revisions"

    name: Mapped[str] = mapped_column(String(32), primary_key=True)
    value: Mapped[int] = mapped_column(BigInteger)


class DeploymentChange(Base):
    """By which server a deployment was last changed, or deleted, and as which revision."""

    __tablename__ = "deployment_changes"

    deployment_id: Mapped[str] = mapped_column(String(40), primary_key=True)
    server_id: Mapped[str] = mapped_column(String(40), primary_key=True)
    revision: Mapped[int] = mapped_column(BigInteger, index=True)


class RateLevel(Base):
    """What is left of a key's minute, less what servers have taken to give out."""

    __tablename__ = "rate_levels"

    key_id: Mapped[str] = mapped_column(String(40), primary_key=True)
    what: Mapped[str] = mapped_column(String(16), primary_key=True)
    level: Mapped[float] = mapped_column(Float)
    counted_at: Mapped[float] = mapped_column(Float)
    """Seconds since 1970, by the database's clock."""
