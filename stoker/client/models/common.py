# `python -m tools.client_api` writes this file.
"""Responses of common, from the OpenAPI document."""

from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec


class Deleted(msgspec.Struct, kw_only=True):
    deleted: bool = True
    id: str
    object: str


if TYPE_CHECKING:
    JobStatus: TypeAlias = Literal["queued", "in_progress", "completed", "failed"] | str
else:
    JobStatus = str


class Memory(msgspec.Struct, kw_only=True):
    """Memory that one replica needs."""

    bytes: int
    is_measured: bool
    """False if estimated from the headers of the weights."""


if TYPE_CHECKING:
    Status: TypeAlias = (
        Literal["starting", "ready", "asleep", "idle", "stopping", "stopped", "failed"] | str
    )
else:
    Status = str


if TYPE_CHECKING:
    VersionStatus: TypeAlias = (
        Literal["preparing", "checking", "ready", "live", "retired", "failed"] | str
    )
else:
    VersionStatus = str


class Version(msgspec.Struct, kw_only=True):
    artifact_id: str | None
    config: dict[str, Any]
    created_at: str
    deployment_id: str
    device: str
    dtype: str
    engine: str
    id: str
    is_loaded: bool
    """True if the version can answer at once."""
    memory: Memory
    message: str
    note: str
    number: int
    object: str = "deployment.version"
    progress: float
    """Progress of the preparation, 0 to 1."""
    promote: str
    promoted_at: str | None
    reason: str
    """Error code of the failure. Empty if the version did not fail."""
    retired_at: str | None
    source: str | None
    status: VersionStatus
    strategy: str
