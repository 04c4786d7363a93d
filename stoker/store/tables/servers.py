"""Data that servers of one PostgreSQL share. SQLite has exactly one server, which does not need
it.
"""

from datetime import datetime

from sqlalchemy import JSON, BigInteger, Float, LargeBinary, String
from sqlalchemy.orm import Mapped, mapped_column

from stoker.store.db import Base, UtcDateTime


class Server(Base):
    """A server that is active, or was until its heartbeat ended."""

    __tablename__ = "servers"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    started_at: Mapped[datetime] = mapped_column(UtcDateTime)
    seen_at: Mapped[datetime] = mapped_column(UtcDateTime)
    """Time of the last heartbeat by the database's clock."""
    loaded: Mapped[list[str]] = mapped_column(JSON)
    """Ids of the versions with replicas on this server."""
    host: Mapped[str] = mapped_column(String(63), server_default="")
    """Name of its machine."""
    version: Mapped[str] = mapped_column(String(40), server_default="")
    """Release of Stoker. Empty for a server of a release that did not record it."""
    python: Mapped[str] = mapped_column(String(40), server_default="")
    schema_revision: Mapped[str] = mapped_column(String(32), server_default="")
    """Newest revision of the schema that its release knows."""


class SchemaSupportRow(Base):
    """The only row says which releases may use the schema. Releases read it without this class."""

    __tablename__ = "schema_support"

    oldest_revision: Mapped[str] = mapped_column(String(32), primary_key=True)
    """Oldest revision whose release may use the schema."""
    release: Mapped[str] = mapped_column(String(40))
    """Release that migrated it."""


class SharedSecret(Base):
    """A value that all servers must share. The first server creates it."""

    __tablename__ = "shared_secrets"

    name: Mapped[str] = mapped_column(String(32), primary_key=True)
    value: Mapped[bytes] = mapped_column(LargeBinary)


class Revision(Base):
    """A change counter. The last statement of each changing transaction increments it. The lock on
    the row makes the numbers visible in order.
    """

    __tablename__ = "revisions"

    name: Mapped[str] = mapped_column(String(32), primary_key=True)
    value: Mapped[int] = mapped_column(BigInteger)


class DeploymentChange(Base):
    """The last change or deletion of a deployment by a server, with its revision."""

    __tablename__ = "deployment_changes"

    deployment_id: Mapped[str] = mapped_column(String(40), primary_key=True)
    server_id: Mapped[str] = mapped_column(String(40), primary_key=True)
    revision: Mapped[int] = mapped_column(BigInteger, index=True)


class RateLevel(Base):
    """Remaining limit of a key for this minute, minus the amounts that servers have reserved."""

    __tablename__ = "rate_levels"

    key_id: Mapped[str] = mapped_column(String(40), primary_key=True)
    what: Mapped[str] = mapped_column(String(16), primary_key=True)
    level: Mapped[float] = mapped_column(Float)
    counted_at: Mapped[float] = mapped_column(Float)
    """Seconds since 1970 by the database's clock."""
