from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Float,
    ForeignKey,
    Index,
    LargeBinary,
    String,
    Text,
    UniqueConstraint,
)
from sqlalchemy.orm import Mapped, mapped_column

from stoker.store.db import Base, UtcDateTime
from stoker.store.tables.jobs import Job

KEEP_S = 600.0


class Desired(StrEnum):
    RUNNING = "running"
    STOPPED = "stopped"


class VersionStatus(StrEnum):
    PREPARING = "preparing"
    """It is loaded and called with examples."""
    CHECKING = "checking"
    """It is asked the deployment's checks."""
    READY = "ready"
    """It was found right, and is not live."""
    LIVE = "live"
    RETIRED = "retired"
    """It was live."""
    FAILED = "failed"


class Variant:
    """A mixin: what runs, and how."""

    artifact_id: Mapped[str | None] = mapped_column(
        String(40), ForeignKey("artifacts.id"), index=True
    )
    upload_id: Mapped[str | None] = mapped_column(String(40))
    source: Mapped[str | None] = mapped_column(String(1024))
    base_source: Mapped[str | None] = mapped_column(String(1100))
    """Of an adapter with replicas of its own: into what it is merged, as specifications name it."""
    engine: Mapped[str] = mapped_column(String(32))
    device: Mapped[str] = mapped_column(String(16))
    dtype: Mapped[str] = mapped_column(String(16))
    config: Mapped[dict[str, Any]] = mapped_column(JSON, default=dict)
    memory_bytes: Mapped[int | None] = mapped_column(BigInteger)
    """What one replica needs, as far as is known."""
    is_measured: Mapped[bool] = mapped_column(default=False)
    """Whether that was measured; else it is an estimate."""
    notices: Mapped[list[dict[str, str]]] = mapped_column(JSON, default=list)
    """What replicas said of the model at the last load: each a `code` and a `message`."""


VARIANT = (
    *("artifact_id", "upload_id", "source", "base_source"),
    *("engine", "device", "dtype", "config"),
    *("memory_bytes", "is_measured", "notices"),
)
"""The columns of a `Variant`."""


class Deployment(Variant, Base):
    """What runs is its live version's, written down here when that takes over."""

    __tablename__ = "deployments"
    __table_args__ = (UniqueConstraint("account_id", "model", name="uq_deployments_account_model"),)

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    account_id: Mapped[str] = mapped_column(String(40), ForeignKey("accounts.id"))
    model: Mapped[str] = mapped_column(String(128))
    pipeline: Mapped[str] = mapped_column(String(64))
    readiness: Mapped[str] = mapped_column(String(8))
    min_replicas: Mapped[int]
    max_replicas: Mapped[int]
    idle_timeout_s: Mapped[float] = mapped_column(Float)
    max_queue: Mapped[int]
    keep_s: Mapped[float] = mapped_column(Float, default=KEEP_S)
    """How long a version that is live no more stays loaded without a request."""
    live_version_id: Mapped[str] = mapped_column(String(40))
    adapter_of: Mapped[str | None] = mapped_column(
        String(40), ForeignKey("deployments.id"), index=True
    )
    """Of an adapter, its base: what runs is that, unless it is merged."""
    merged_because: Mapped[str | None] = mapped_column(Text)
    """Of an adapter with replicas of its own: why it does not share its base's."""
    has_adapters: Mapped[bool] = mapped_column(default=False)
    """Whether others share its replicas."""
    traffic: Mapped[dict[str, Any] | None] = mapped_column(JSON)
    """How calls are shared out between versions; None: all are the live one's."""
    desired: Mapped[str] = mapped_column(String(16))
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime)

    @property
    def shares(self) -> str | None:
        """Of an adapter, whose replicas answer its calls."""
        return None if self.merged_because else self.adapter_of


class DeploymentVersion(Job, Variant, Base):
    """Its job is to find out whether it can take over, and then to do so where that is wanted."""

    __tablename__ = "deployment_versions"
    __table_args__ = (
        UniqueConstraint("deployment_id", "number", name="uq_deployment_versions_number"),
    )

    deployment_id: Mapped[str] = mapped_column(
        String(40), ForeignKey("deployments.id", ondelete="CASCADE")
    )
    number: Mapped[int]
    """From 1, in the order in which a deployment's were made."""
    state: Mapped[str] = mapped_column(String(16))
    """A `VersionStatus`; `status` is its job's."""
    reason: Mapped[str] = mapped_column(String(64), default="")
    message: Mapped[str] = mapped_column(Text, default="")
    note: Mapped[str] = mapped_column(String(1024), default="")
    promote: Mapped[str] = mapped_column(String(16))
    strategy: Mapped[str] = mapped_column(String(16))
    promoted_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    """When it last became live."""
    retired_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    """When it last ceased to be live."""
    merged_bytes: Mapped[int | None] = mapped_column(BigInteger)
    """Of a merged adapter: the size of the folder with its base's weights, while there is one."""


class VersionComparison(Base):
    """What one server has counted of the copies that a version got as a mirror; see
    `stoker/workloads/rollouts/tally.py`.
    """

    __tablename__ = "version_comparisons"
    __table_args__ = (Index("ix_version_comparisons_version_id", "version_id"),)

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    version_id: Mapped[str] = mapped_column(
        String(40), ForeignKey("deployment_versions.id", ondelete="CASCADE")
    )
    live_version_id: Mapped[str] = mapped_column(String(40))
    tally: Mapped[dict[str, Any]] = mapped_column(JSON)
    examples: Mapped[bytes | None] = mapped_column(LargeBinary)
    """Sealed: they hold what callers sent."""
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime)


class DeploymentEvent(Base):
    """A change of a deployment's observed state."""

    __tablename__ = "deployment_events"
    __table_args__ = (Index("ix_deployment_events_deployment_id_id", "deployment_id", "id"),)

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    deployment_id: Mapped[str] = mapped_column(
        String(40), ForeignKey("deployments.id", ondelete="CASCADE")
    )
    version_id: Mapped[str | None] = mapped_column(String(40))
    """Of which version; None: from before there were any."""
    status: Mapped[str] = mapped_column(String(16))
    reason: Mapped[str] = mapped_column(String(32))
    message: Mapped[str] = mapped_column(Text)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
