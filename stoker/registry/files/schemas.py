from dataclasses import dataclass
from typing import Annotated, Literal

from fastapi import Query
from pydantic import ConfigDict, Field

from stoker.base.strict_json import Strict
from stoker.platform.web.dependencies import made
from stoker.platform.web.lists import PageQuery
from stoker.platform.web.schemas import ResponseModel
from stoker.store.db import NO_CONTROL
from stoker.store.tables import files as models
from stoker.store.tables.files import NEVER, FileUploadStatus, Purpose

MIN_KEEP_S, MAX_KEEP_S = 3600, 30 * 24 * 3600
MAX_PARTS = 10_000
"""Maximum number of parts of an upload."""


class File(ResponseModel):
    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int = Field(description="Unix seconds.")
    expires_at: int | None = Field(description="Unix seconds. `null` if the file does not expire.")
    filename: str
    purpose: Purpose
    status: Literal["processed"] = Field(
        default="processed", description="Files have no other status. OpenAI's clients need one."
    )
    content_type: str


_SUFFIXES = {"image/jpeg": "jpg"}


def filename(file: models.File) -> str:
    if file.filename is not None:
        return file.filename
    kind = file.content_type
    return f"{file.id}.{_SUFFIXES.get(kind) or kind.partition('/')[2]}"


def response(file: models.File) -> File:
    return File(
        id=file.id,
        bytes=file.size,
        created_at=int(file.created_at.timestamp()),
        expires_at=None if file.expires_at >= NEVER else int(file.expires_at.timestamp()),
        filename=filename(file),
        purpose=Purpose(file.purpose),
        content_type=file.content_type,
    )


@dataclass(frozen=True)
class FilePageQuery(PageQuery):
    limit: Annotated[int, Query(ge=1, le=10_000, description="Most objects returned.")] = 20
    purpose: Annotated[
        str | None,
        Query(max_length=64, pattern=NO_CONTROL, description="Only files with this purpose."),
    ] = None


FilePaging = Annotated[FilePageQuery, made(FilePageQuery)]


class FileRequest(Strict):
    """Base of requests of OpenAI's clients, which may have fields that are not known here."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)
    is_stored = True


class ExpiresAfter(FileRequest):
    anchor: Literal["created_at"]
    seconds: int = Field(ge=MIN_KEEP_S, le=MAX_KEEP_S)


class FileUploadCreate(FileRequest):
    filename: str = Field(min_length=1, max_length=1024)
    purpose: str = Field(max_length=64, description="`batch` or `user_data`.")
    bytes: int = Field(ge=1, le=1 << 50, description="Size of the whole file.")
    mime_type: str = Field(max_length=256)
    expires_after: ExpiresAfter | None = None


class FileUploadComplete(FileRequest):
    part_ids: list[Annotated[str, Field(max_length=64)]] = Field(
        min_length=1, max_length=MAX_PARTS, description="The parts in the order of the file."
    )
    md5: str | None = Field(
        default=None,
        pattern="^[0-9a-fA-F]{32}$",
        description="MD5 of the whole file in hexadecimal digits. The server compares it.",
    )


class FileUploadPart(ResponseModel):
    id: str
    object: Literal["upload.part"] = "upload.part"
    bytes: int
    created_at: int = Field(description="Unix seconds.")
    upload_id: str

    @classmethod
    def of(cls, part: models.FileUploadPart) -> "FileUploadPart":
        return cls(
            id=part.id,
            bytes=part.size,
            created_at=int(part.created_at.timestamp()),
            upload_id=part.upload_id,
        )


class FileUpload(ResponseModel):
    id: str
    object: Literal["upload"] = "upload"
    bytes: int
    created_at: int = Field(description="Unix seconds.")
    expires_at: int = Field(description="Unix seconds.")
    filename: str
    purpose: Purpose
    status: FileUploadStatus
    file: File | None = Field(description="The file, once the upload is completed.")

    @classmethod
    def of(cls, upload: models.FileUpload, file: models.File | None = None) -> "FileUpload":
        return cls(
            id=upload.id,
            bytes=upload.size,
            created_at=int(upload.created_at.timestamp()),
            expires_at=int(upload.expires_at.timestamp()),
            filename=upload.filename,
            purpose=Purpose(upload.purpose),
            status=FileUploadStatus(upload.status),
            file=None if file is None else response(file),
        )


class FileUploadState(FileUpload):
    parts: list[FileUploadPart] = Field(description="Received parts, oldest first.")
