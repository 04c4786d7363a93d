# `python -m tools.client_api` writes this file.
"""Responses of media, from the OpenAPI document."""

from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from .common import JobStatus

if TYPE_CHECKING:
    Purpose: TypeAlias = Literal["image", "video", "thumbnail", "reference"] | str
else:
    Purpose = str


class File(msgspec.Struct, kw_only=True):
    bytes: int
    content_type: str
    created_at: int
    expires_at: int
    filename: str
    id: str
    object: str = "file"
    purpose: Purpose


class VideoError(msgspec.Struct, kw_only=True):
    code: str
    message: str


class Video(msgspec.Struct, kw_only=True):
    completed_at: int | None
    created_at: int
    error: VideoError | None
    expires_at: int | None
    id: str
    model: str
    object: str = "video"
    progress: int
    prompt: str
    remixed_from_video_id: Any = None
    seconds: float | None
    size: str | None
    status: JobStatus
