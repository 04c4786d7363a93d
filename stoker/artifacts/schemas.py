from collections.abc import Iterable, Sequence
from typing import Annotated, Literal

from pydantic import Field, PlainSerializer

from stoker.artifacts.layout import FileState
from stoker.store.tables import artifacts as models
from stoker.store.tables.artifacts import ArtifactStatus, UploadStatus
from stoker.web.schemas import RequestModel, ResponseModel, UtcString

DisplayName = Annotated[
    str,
    # Control characters have no place in a name, and one of the databases cannot store NUL.
    Field(min_length=1, max_length=128, pattern=r"^[^\x00-\x1f\x7f]+$"),
]
Sha256 = Annotated[bytes, PlainSerializer(bytes.hex, return_type=str)]


class ArtifactCreate(RequestModel):
    display_name: DisplayName
    pipeline: str | None = Field(
        None,
        min_length=1,
        max_length=64,
        description="The task the model serves; found from its files where absent.",
    )


class ArtifactUpdate(RequestModel):
    display_name: DisplayName | None = None


class UploadCreate(RequestModel):
    size_bytes: int | None = Field(
        None,
        ge=0,
        le=1 << 60,
        description="What the files will have together: kept for this session from now on, or "
        "refused now.",
    )


class Failure(ResponseModel):
    code: str
    message: str = Field(description="What was wrong with the files and what would be right.")


class Inspection(ResponseModel):
    architecture: str
    model_type: str
    parameters: int
    weight_bytes: int
    memory_bytes: int = Field(description="Memory that a replica needs, estimated from headers.")
    dtype: str
    engines: list[str]
    warnings: list[str]


class Artifact(ResponseModel):
    id: str
    object: Literal["model_artifact"] = "model_artifact"
    display_name: str
    pipeline: str | None = Field(description="The task the model serves; null until it is known.")
    status: ArtifactStatus
    size_gb: float = Field(description="Size of the live files, 10^9 bytes.")
    size_bytes: int
    failure: Failure | None
    inspection: Inspection | None = Field(description="What the live files are.")
    upload_id: str | None = Field(description="The open upload session.")
    created_at: UtcString
    updated_at: UtcString

    @classmethod
    def of(cls, row: models.Artifact) -> "Artifact":
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
    size: int | None = Field(description="Bytes of the whole file, where known.")
    received: int = Field(description="Durable bytes without a gap, from the file's begin.")
    complete: bool = Field(description="Nothing of it is missing, as far as its size is known.")
    sha256: Sha256 | None = Field(
        description="Known of a file of one part, and of one that came whole with a Content-Digest."
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
    """The headers that tell where to go on, named as in draft-ietf-httpbis-resumable-upload."""
    headers = {
        "cache-control": "no-store",
        "upload-offset": str(file.received),
        "upload-complete": "?1" if file.complete else "?0",
    }
    if file.size is not None:
        headers["upload-length"] = str(file.size)
    return headers
