# `python -m tools.client_api` writes this file.
"""Responses of media, from the OpenAPI document."""

from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from .common import JobStatus

if TYPE_CHECKING:
    Purpose: TypeAlias = (
        Literal["image", "video", "thumbnail", "reference", "batch", "user_data", "batch_output"]
        | str
    )
else:
    Purpose = str


class File(msgspec.Struct, kw_only=True):
    bytes: int
    content_type: str
    created_at: int
    """Unix seconds."""
    expires_at: int | None
    """Unix seconds. `null` if the file does not expire."""
    filename: str
    id: str
    object: str = "file"
    purpose: Purpose
    status: str = "processed"
    """Files have no other status. OpenAI's clients need one."""


class VideoError(msgspec.Struct, kw_only=True):
    code: str
    message: str


class Video(msgspec.Struct, kw_only=True):
    completed_at: int | None
    """Time when the job ended, with or without success. Unix seconds."""
    created_at: int
    """Unix seconds."""
    error: VideoError | None
    expires_at: int | None
    """When its content is removed. Unix seconds."""
    id: str
    model: str
    object: str = "video"
    progress: int
    """Percent."""
    prompt: str
    remixed_from_video_id: Any = None
    seconds: float | None
    """Duration of the video, seconds. Null only if a broken model does not report it."""
    size: str | None
    """`<width>x<height>`; null if `seconds` is null."""
    status: JobStatus
