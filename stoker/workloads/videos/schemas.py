"""`/v1/videos`: OpenAI's names, and our own for options that its models do not offer."""

import re
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal, cast

from pydantic import AfterValidator, BaseModel, Field, model_validator

from stoker.inference.openai.sampling import OpenAIRequest
from stoker.media.media import Media
from stoker.models.tasks.base import refusal
from stoker.models.tasks.inputs import Image
from stoker.platform.web.schemas import ResponseModel
from stoker.store.tables.jobs import JobStatus
from stoker.wire.video_request import (
    MAX_FPS,
    MAX_GUIDANCE,
    MAX_SECONDS,
    MAX_SEED,
    MAX_SIDE,
    MAX_STEPS,
    MIN_SIDE,
)

_SIZE = re.compile(r"(\d{1,4})x(\d{1,4})")


def _size(value: str) -> str:
    match = _SIZE.fullmatch(value)
    if not match or not all(MIN_SIDE <= int(side) <= MAX_SIDE for side in match.groups()):
        raise ValueError(f"must be '<width>x<height>', each from {MIN_SIDE} to {MAX_SIDE} pixels")
    return value


Size = Annotated[str, Field(max_length=9), AfterValidator(_size)]


class VideoCreate(OpenAIRequest):
    checks_spelling = True

    model: str = Field(min_length=1, max_length=128, description="The deployment's model id.")
    prompt: str = Field(min_length=1, max_length=32_000, description="Description of the video.")
    input_reference: Image | None = Field(
        default=None,
        description="Image that the video begins with: a file, a URL, a data URI, base64, an "
        'allowed path, or {"image_url": …}. If a video is sent, its first frame is used.',
    )
    seconds: float | None = Field(
        default=None,
        gt=0,
        le=MAX_SECONDS,
        description=(
            "Duration, seconds; default: the model's own. It is rounded to a number of "
            "frames that the model supports."
        ),
    )
    size: Size | None = Field(
        default=None, description="`<width>x<height>` in pixels; default: the model's own."
    )
    fps: int | None = Field(
        default=None, ge=1, le=MAX_FPS, description="Frames a second; default: the model's own."
    )
    num_inference_steps: int | None = Field(
        default=None, ge=1, le=MAX_STEPS, description="Denoising steps; default: the model's own."
    )
    guidance_scale: float | None = Field(
        default=None, ge=0, le=MAX_GUIDANCE, description="Higher values keep closer to the prompt."
    )
    negative_prompt: str | None = Field(
        default=None, min_length=1, max_length=32_000, description="What to avoid."
    )
    seed: int | None = Field(
        default=None, ge=0, le=MAX_SEED, description="Makes the video repeatable."
    )

    inputs: ClassVar = ("model", "prompt", "input_reference", "size")

    @model_validator(mode="before")
    @classmethod
    def _unnest(cls, data: Any) -> Any:
        """Accepts the SDK's reference objects, which a form spells `input_reference[image_url]`."""
        if not isinstance(data, dict):
            return data
        body = dict(cast("dict[str, Any]", data))
        reference = body.get("input_reference")
        inner = cast("dict[str, Any]", reference) if isinstance(reference, dict) else {}
        for name in ("image_url", "file_id"):
            if (nested := body.pop(f"input_reference[{name}]", None)) is not None:
                inner = {**inner, name: nested}
        if "file_id" in inner:
            raise refusal(
                "names a file id, which is not supported: send the image", "input_reference"
            )
        if inner:
            body["input_reference"] = inner.get("image_url")
        return body

    def media(self) -> Iterator[tuple[str, Media]]:
        if self.input_reference:
            yield "input_reference", self.input_reference

    def parameters(self) -> dict[str, Any]:
        """Returns the parameters for the replica's stages."""
        values = self.model_dump(exclude=set(self.inputs), exclude_none=True)
        if self.size:
            width, height = self.size.split("x")
            values |= {"width": int(width), "height": int(height)}
        return values


Variant = Literal["video", "thumbnail"]


class VideoError(BaseModel):
    code: str
    message: str


class Video(ResponseModel):
    id: str
    object: Literal["video"] = "video"
    created_at: int = Field(description="Unix seconds.")
    completed_at: int | None = Field(
        description="Time when the job ended, with or without success. Unix seconds."
    )
    expires_at: int | None = Field(description="When its content is removed. Unix seconds.")
    model: str
    prompt: str
    status: JobStatus
    progress: int = Field(description="Percent.")
    seconds: float | None = Field(
        description=(
            "Duration of the video, seconds. Null only if a broken model does not report it."
        )
    )
    size: str | None = Field(description="`<width>x<height>`; null if `seconds` is null.")
    error: VideoError | None
    remixed_from_video_id: None = None
