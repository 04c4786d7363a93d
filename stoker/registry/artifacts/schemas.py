from collections.abc import Iterable, Sequence
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, PlainSerializer

from stoker.platform.web.schemas import RequestModel, ResponseModel, UtcString
from stoker.registry.artifacts.layout import FileState
from stoker.store.tables import artifacts as models
from stoker.store.tables.artifacts import ArtifactStatus, UploadStatus
from stoker.store.tables.imports import Import as ImportRow
from stoker.store.tables.jobs import JobStatus

DisplayName = Annotated[
    str,
    # Names must not contain control characters. One of the databases cannot store NUL.
    Field(min_length=1, max_length=128, pattern=r"^[^\x00-\x1f\x7f]+$"),
]
Sha256 = Annotated[bytes, PlainSerializer(bytes.hex, return_type=str)]


class ArtifactCreate(RequestModel):
    display_name: DisplayName
    pipeline: str | None = Field(
        None,
        min_length=1,
        max_length=64,
        description="Pipeline of the model; detected from its files if absent.",
    )


class ArtifactUpdate(RequestModel):
    display_name: DisplayName | None = None


class UploadCreate(RequestModel):
    size_bytes: int | None = Field(
        None,
        ge=0,
        le=1 << 60,
        description="Total size of the files, bytes. The server reserves it for this session, "
        "or rejects the request.",
    )


class Failure(ResponseModel):
    code: str
    message: str = Field(description="Problem with the files and how to correct it.")


class Adapter(ResponseModel):
    """Weights that are added to those of another model."""

    rank: int = Field(description="Largest rank of the adapter's matrices.")
    modules: list[str] = Field(description="Names of the modules that it adapts.")
    base: str = Field(description="Base model named in its configuration.")


class Inspection(ResponseModel):
    architecture: str
    model_type: str
    parameters: int
    weight_bytes: int
    memory_bytes: int = Field(description="Memory that a replica needs, estimated from headers.")
    dtype: str
    engines: list[str]
    warnings: list[str]
    adapter: Adapter | None = Field(default=None, description="Null for a whole model.")


class Origin(ResponseModel):
    """Source of an artifact's live files."""

    hub: str
    repo_id: str
    revision: str = Field(description="Revision as requested.")
    commit: str = Field(description="What that was.")


class Import(ResponseModel):
    """Files that are being fetched from a hub."""

    id: str
    object: Literal["model_artifact.import"] = "model_artifact.import"
    repo_id: str
    revision: str
    commit: str
    status: JobStatus
    files: int
    bytes: int = Field(description="Bytes received and stored durably.")
    bytes_total: int
    error: Failure | None
    created_at: UtcString
    completed_at: UtcString | None

    @classmethod
    def of(cls, row: ImportRow, received: int) -> "Import":
        """Builds the import's response.

        Args:
            received: bytes of its upload session's parts.
        """
        error = None
        if row.error_code:
            error = Failure(code=row.error_code, message=row.error_message or "")
        is_done = row.status == JobStatus.COMPLETED
        return cls(
            id=row.id,
            repo_id=row.repo_id,
            revision=row.revision,
            commit=row.commit,
            status=JobStatus(row.status),
            files=len(row.files),
            bytes=row.bytes_total if is_done else received,
            bytes_total=row.bytes_total,
            error=error,
            created_at=row.created_at,
            completed_at=row.completed_at,
        )


class Artifact(ResponseModel):
    # The name of one field is a Python keyword, so the field has an alias.
    model_config = ConfigDict(serialize_by_alias=True)

    id: str
    object: Literal["model_artifact"] = "model_artifact"
    display_name: str
    pipeline: str | None = Field(description="The task the model serves; null until it is known.")
    status: ArtifactStatus
    size_gb: float = Field(description="Size of the live files, 10^9 bytes.")
    size_bytes: int
    failure: Failure | None
    inspection: Inspection | None = Field(description="Result of the inspection of the live files.")
    upload_id: str | None = Field(description="The open upload session.")
    origin: Origin | None = Field(description="The hub that the live files were imported from.")
    import_: Import | None = Field(
        serialization_alias="import", description="The last import from a hub."
    )
    created_at: UtcString
    updated_at: UtcString

    @classmethod
    def of(cls, row: models.Artifact, importing: Import | None = None) -> "Artifact":
        failure = None
        if row.failure_code is not None:
            failure = Failure(code=row.failure_code, message=row.failure_message or "")
        return cls(
            id=row.id,
            display_name=row.display_name,
            pipeline=row.pipeline or row.requested_pipeline,
            status=ArtifactStatus(row.status),
            size_gb=round(row.size_bytes / 1e9, 6),
            size_bytes=row.size_bytes,
            failure=failure,
            inspection=Inspection.model_validate(row.inspection) if row.inspection else None,
            upload_id=row.open_upload_id,
            origin=Origin.model_validate(row.origin) if row.origin else None,
            import_=importing,
            created_at=row.created_at,
            updated_at=row.updated_at,
        )


class ArtifactAnswer(ResponseModel):
    message: str
    artifact: Artifact


class UploadOpened(ArtifactAnswer):
    upload_id: str
    part_size: int = Field(description="Size of every part but a file's last, bytes.")


class Part(ResponseModel):
    number: int
    size: int
    sha256: Sha256


class ReceivedFile(ResponseModel):
    path: str
    size: int | None = Field(description="Size of the complete file, bytes, if known.")
    received: int = Field(description="Contiguous bytes stored from the start of the file.")
    complete: bool = Field(description="True if no bytes of the file are known to be missing.")
    sha256: Sha256 | None = Field(
        description="Known for files of one part, and for files sent whole with a Content-Digest."
    )

    @classmethod
    def of(cls, row: models.UploadFile, state: FileState) -> "ReceivedFile":
        return cls(
            path=row.path,
            size=state.size,
            received=state.received,
            complete=state.complete,
            sha256=row.sha256,
        )


class FileWithParts(ReceivedFile):
    parts: list[Part]

    @classmethod
    def of_parts(
        cls, row: models.UploadFile, state: FileState, parts: Sequence[models.UploadPart]
    ) -> "FileWithParts":
        return cls(
            **dict(ReceivedFile.of(row, state)), parts=[Part.model_validate(part) for part in parts]
        )


class Upload(ResponseModel):
    upload_id: str
    object: Literal["upload"] = "upload"
    artifact_id: str
    status: UploadStatus
    part_size: int
    created_at: UtcString
    expires_at: UtcString
    files: list[FileWithParts]

    @classmethod
    def of(
        cls,
        row: models.Upload,
        files: Iterable[tuple[models.UploadFile, Sequence[models.UploadPart], FileState]],
    ) -> "Upload":
        return cls(
            upload_id=row.id,
            artifact_id=row.artifact_id,
            status=UploadStatus(row.status),
            part_size=row.part_size,
            created_at=row.created_at,
            expires_at=row.expires_at,
            files=[FileWithParts.of_parts(file, state, parts) for file, parts, state in files],
        )


def resumption(file: ReceivedFile) -> dict[str, str]:
    """Returns the headers that report the offset to resume from, named as in
    draft-ietf-httpbis-resumable-upload.
    """
    headers = {
        "cache-control": "no-store",
        "upload-offset": str(file.received),
        "upload-complete": "?1" if file.complete else "?0",
    }
    if file.size is not None:
        headers["upload-length"] = str(file.size)
    return headers
