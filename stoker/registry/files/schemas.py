from typing import Literal

from pydantic import Field

from stoker.platform.web.schemas import ResponseModel
from stoker.store.tables import files as models
from stoker.store.tables.files import NEVER, Purpose


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
