from typing import Any

from sqlalchemy import JSON, BigInteger, ForeignKey, LargeBinary, String
from sqlalchemy.orm import Mapped, mapped_column, synonym

from stoker.store.db import Base
from stoker.store.tables.jobs import Job


class Import(Job, Base):
    """A revision of a hub's repository to be fetched into an upload session; an artifact's last."""

    __tablename__ = "imports"

    artifact_id: Mapped[str] = mapped_column(
        String(40), ForeignKey("artifacts.id", ondelete="CASCADE"), unique=True
    )
    deployment_id = synonym("artifact_id")  # pyright: ignore[reportAssignmentType]
    """What its share of the work is counted by: one import of an artifact at a time."""
    upload_id: Mapped[str] = mapped_column(String(40))
    repo_id: Mapped[str] = mapped_column(String(200))
    revision: Mapped[str] = mapped_column(String(255))
    """As it was asked for."""
    commit: Mapped[str] = mapped_column(String(40))
    """What that was when it was."""
    files: Mapped[list[dict[str, Any]]] = mapped_column(JSON)
    """Those that are fetched: the fields of a `hub.client.HubFile`."""
    bytes_total: Mapped[int] = mapped_column(BigInteger)
    token: Mapped[bytes | None] = mapped_column(LargeBinary)
    """The caller's, sealed, until the import has ended."""
