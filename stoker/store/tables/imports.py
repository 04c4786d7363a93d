from typing import Any

from sqlalchemy import JSON, BigInteger, ForeignKey, LargeBinary, String
from sqlalchemy.orm import Mapped, mapped_column, synonym

from stoker.store.db import Base
from stoker.store.tables.jobs import Job


class Import(Job, Base):
    """An artifact's last import: a revision of a hub's repository that is fetched into an upload
    session.
    """

    __tablename__ = "imports"

    artifact_id: Mapped[str] = mapped_column(
        String(40), ForeignKey("artifacts.id", ondelete="CASCADE"), unique=True
    )
    deployment_id = synonym("artifact_id")  # pyright: ignore[reportAssignmentType]
    """Id for fair scheduling of jobs, which allows one import per artifact at a time."""
    upload_id: Mapped[str] = mapped_column(String(40))
    repo_id: Mapped[str] = mapped_column(String(200))
    revision: Mapped[str] = mapped_column(String(255))
    """Revision as requested."""
    commit: Mapped[str] = mapped_column(String(40))
    """Commit of the revision at the time of the request."""
    files: Mapped[list[dict[str, Any]]] = mapped_column(JSON)
    """Files that are fetched, as the fields of a `hub.client.HubFile`."""
    bytes_total: Mapped[int] = mapped_column(BigInteger)
    token: Mapped[bytes | None] = mapped_column(LargeBinary)
    """The caller's hub token, sealed, until the import has ended."""
