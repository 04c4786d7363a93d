from datetime import datetime
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
from stoker.store.open_enum import OpenEnum
from stoker.store.tables.jobs import Job

KEEP_S = 600.0


class Desired(OpenEnum):
    RUNNING = "running"
    STOPPED = "stopped"


class VersionStatus(OpenEnum):
    PREPARING = "preparing"
    """The version is being loaded and called with examples."""
    CHECKING = "checking"
    """The version is running the deployment's checks."""
    READY = "ready"
    """The version has passed and is not live."""
    LIVE = "live"
    RETIRED = "retired"
    """The version was live."""
    FAILED = "failed"


class Variant:
    """Mixin with the configuration that runs: model, engine and options."""

    artifact_id: Mapped[str | None] = mapped_column(
        String(40), ForeignKey("artifacts.id"), index=True
    )
    upload_id: Mapped[str | None] = mapped_column(String(40))
    source: Mapped[str | None] = mapped_column(String(1024))
    base_source: Mapped[str | None] = mapped_column(String(1100))
    """For an adapter with separate replicas: the base that it is merged into, as named in
    specifications.
    """
    engine: Mapped[str] = mapped_column(String(32))
    device: Mapped[str] = mapped_column(String(16))
    dtype: Mapped[str] = mapped_column(String(16))
    config: Mapped[dict[str, Any]] = mapped_column(JSON, default=dict)
    memory_bytes: Mapped[int | None] = mapped_column(BigInteger)
    """Memory requirement of one replica in bytes, if known."""
    is_measured: Mapped[bool] = mapped_column(default=False)
    """True if `memory_bytes` was measured. Otherwise it is an estimate."""
    notices: Mapped[list[dict[str, str]]] = mapped_column(JSON, default=list)
    """Notices of the replicas from the last load, each with a `code` and a `message`."""


VARIANT = (
    *("artifact_id", "upload_id", "source", "base_source"),
    *("engine", "device", "dtype", "config"),
    *("memory_bytes", "is_measured", "notices"),
)
"""Columns of a `Variant`."""


class Deployment(Variant, Base):
    """A deployment. Its variant is copied from the live version whenever a version becomes live."""

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
    """Seconds for which a former live version stays loaded without a request."""
    live_version_id: Mapped[str] = mapped_column(String(40))
    adapter_of: Mapped[str | None] = mapped_column(
        String(40), ForeignKey("deployments.id"), index=True
    )
    """Base of an adapter. The base runs, unless the adapter is merged."""
    merged_because: Mapped[str | None] = mapped_column(Text)
    """For an adapter with separate replicas: the reason for not sharing the replicas of its
    base.
    """
    has_adapters: Mapped[bool] = mapped_column(default=False)
    """True if adapters share its replicas."""
    traffic: Mapped[dict[str, Any] | None] = mapped_column(JSON)
    """Distribution of calls among versions. None if all go to the live one."""
    desired: Mapped[str] = mapped_column(String(16))
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime)

    @property
    def shares(self) -> str | None:
        """For an adapter, the deployment with the replicas that answer its calls."""
        return None if self.merged_because else self.adapter_of


class DeploymentVersion(Job, Variant, Base):
    """A version of a deployment. Its job checks whether it can become live, and then makes it live
    if requested.
    """

    __tablename__ = "deployment_versions"
    __table_args__ = (
        UniqueConstraint("deployment_id", "number", name="uq_deployment_versions_number"),
    )

    deployment_id: Mapped[str] = mapped_column(
        String(40), ForeignKey("deployments.id", ondelete="CASCADE")
    )
    number: Mapped[int]
    """Number of the version within its deployment, from 1 in order of creation."""
    state: Mapped[str] = mapped_column(String(16))
    """A `VersionStatus`. `status` is the status of the job."""
    reason: Mapped[str] = mapped_column(String(64), default="")
    message: Mapped[str] = mapped_column(Text, default="")
    note: Mapped[str] = mapped_column(String(1024), default="")
    promote: Mapped[str] = mapped_column(String(16))
    strategy: Mapped[str] = mapped_column(String(16))
    promoted_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    """Time when it last became live."""
    retired_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    """Time when it last ceased to be live."""
    merged_bytes: Mapped[int | None] = mapped_column(BigInteger)
    """For a merged adapter: size in bytes of the folder with its base's weights, while it
    exists.
    """


class VersionComparison(Base):
    """Counts by one server for the copies of calls that a version received as a mirror. See
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
    """Sealed, because the examples contain callers' data."""
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
    """Version of the event. None for events from before versions existed."""
    status: Mapped[str] = mapped_column(String(16))
    reason: Mapped[str] = mapped_column(String(32))
    message: Mapped[str] = mapped_column(Text)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
