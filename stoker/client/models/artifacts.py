# `python -m tools.client_api` writes this file.
"""Responses of artifacts, from the OpenAPI document."""

from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

from .common import JobStatus

if TYPE_CHECKING:
    ArtifactStatus: TypeAlias = (
        Literal["created", "uploading", "ingesting", "ready", "failed"] | str
    )
else:
    ArtifactStatus = str


class Failure(msgspec.Struct, kw_only=True):
    code: str
    message: str
    """Problem with the files and how to correct it."""


class Import(msgspec.Struct, kw_only=True):
    """Files that are being fetched from a hub."""

    bytes: int
    """Bytes received and stored durably."""
    bytes_total: int
    commit: str
    completed_at: str | None
    created_at: str
    error: Failure | None
    files: int
    id: str
    object: str = "model_artifact.import"
    repo_id: str
    revision: str
    status: JobStatus


class ArtifactAdapter(msgspec.Struct, kw_only=True):
    """Weights that are added to those of another model."""

    base: str
    """Base model named in its configuration."""
    modules: list[str]
    """Names of the modules that it adapts."""
    rank: int
    """Largest rank of the adapter's matrices."""


class Inspection(msgspec.Struct, kw_only=True):
    adapter: ArtifactAdapter | None = None
    """Null for a whole model."""
    architecture: str
    dtype: str
    engines: list[str]
    memory_bytes: int
    """Memory that a replica needs, estimated from headers."""
    model_type: str
    parameters: int
    warnings: list[str]
    weight_bytes: int


class Origin(msgspec.Struct, kw_only=True):
    """Source of an artifact's live files."""

    commit: str
    """What that was."""
    hub: str
    repo_id: str
    revision: str
    """Revision as requested."""


class Artifact(msgspec.Struct, kw_only=True):
    created_at: str
    display_name: str
    failure: Failure | None
    id: str
    import_: Import | None = msgspec.field(name="import")
    """The last import from a hub."""
    inspection: Inspection | None
    """Result of the inspection of the live files."""
    object: str = "model_artifact"
    origin: Origin | None
    """The hub that the live files were imported from."""
    pipeline: str | None
    """The task the model serves; null until it is known."""
    size_bytes: int
    size_gb: float
    """Size of the live files, 10^9 bytes."""
    status: ArtifactStatus
    updated_at: str
    upload_id: str | None
    """The open upload session."""


class ArtifactAnswer(msgspec.Struct, kw_only=True):
    artifact: Artifact
    message: str
