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


class Import(msgspec.Struct, kw_only=True):
    """Files that are being fetched from a hub."""

    bytes: int
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
    modules: list[str]
    rank: int


class Inspection(msgspec.Struct, kw_only=True):
    adapter: ArtifactAdapter | None = None
    architecture: str
    dtype: str
    engines: list[str]
    memory_bytes: int
    model_type: str
    parameters: int
    warnings: list[str]
    weight_bytes: int


class Origin(msgspec.Struct, kw_only=True):
    """Source of an artifact's live files."""

    commit: str
    hub: str
    repo_id: str
    revision: str


class Artifact(msgspec.Struct, kw_only=True):
    created_at: str
    display_name: str
    failure: Failure | None
    id: str
    import_: Import | None = msgspec.field(name="import")
    inspection: Inspection | None
    object: str = "model_artifact"
    origin: Origin | None
    pipeline: str | None
    size_bytes: int
    size_gb: float
    status: ArtifactStatus
    updated_at: str
    upload_id: str | None


class ArtifactAnswer(msgspec.Struct, kw_only=True):
    artifact: Artifact
    message: str
