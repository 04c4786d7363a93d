from typing import Literal

from pydantic import Field

from stoker.platform.web.schemas import ResponseModel
from stoker.store.tables import files as models
from stoker.store.tables.files import Purpose


class File(ResponseModel):
    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int = Field(description="Unix seconds.")
    expires_at: int = Field(description="Unix seconds.")
    filename: str
    purpose: Purpose
    content_type: str


_SUFFIXES = {"image/jpeg": "jpg"}


def filename(file: models.File) -> str:
    kind = file.content_type
    return f"{file.id}.{_SUFFIXES.get(kind) or kind.partition('/')[2]}"


def response(file: models.File) -> File:
    return File(
        id=file.id,
        bytes=file.size,
        created_at=int(file.created_at.timestamp()),
        expires_at=int(file.expires_at.timestamp()),
        filename=filename(file),
        purpose=Purpose(file.purpose),
        content_type=file.content_type,
    )
