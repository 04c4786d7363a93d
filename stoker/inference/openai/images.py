"""`POST /v1/images/generations` and `/v1/images/edits`: generated images, as links or in the
answer.
"""

import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import msgspec
from fastapi import APIRouter, Response
from pydantic import BaseModel, Field

from stoker.inference import bodies
from stoker.inference.call import Calling, CallingDep, CallRoute
from stoker.inference.convention import EVENTS, Convention, add_route, streamed
from stoker.inference.openai.image_requests import ImageEditRequest, ImageGenerationRequest
from stoker.models.tasks.registry import MEDIA
from stoker.models.tasks.text_to_image import EDITS, GENERATIONS
from stoker.registry.deployments.directory import DirectoryEntry
from stoker.registry.files import service as files
from stoker.runtime.interface import KEEP_ALIVE, Call
from stoker.store.tables.files import Purpose
from stoker.wire.image_answer import ImageFormat, Images

JSON = "application/json"
_FILES = {f"image/{form}": None for form in get_args(ImageFormat)}
MAX_FILES = 17
"""OpenAI's clients may send 16 images and a mask. More than one image is rejected with an error
that names the field.
"""

_encode = msgspec.json.Encoder().encode
_images = msgspec.msgpack.Decoder(Images).decode


class DrawnImage(BaseModel):
    """Generated image, as a link or as base64, according to `response_format`."""

    url: str | None = Field(default=None, description="A link that expires.")
    b64_json: str | None = Field(default=None, description="The file in base64.")


class ImagesAnswer(BaseModel):
    model: str
    created: int = Field(description="Unix seconds.")
    id: str
    data: list[DrawnImage]
    size: str = Field(description="`<width>x<height>`, in pixels.")
    output_format: ImageFormat


@dataclass(frozen=True, kw_only=True)
class Drawn(Convention[ImageGenerationRequest]):
    event: Literal["image_generation", "image_edit"]
    """Name of the stream's events."""

    @property
    def pipelines(self) -> list[str]:
        return [pipeline.name for pipeline in MEDIA.values() if self.path in pipeline.paths]


CONVENTIONS = (
    Drawn(
        path=GENERATIONS,
        summary="Create images",
        request=ImageGenerationRequest,
        answers={JSON: ImagesAnswer, EVENTS: None, **_FILES},
        example={"model": "tiny-draw", "prompt": "a red circle", "seed": 1},
        event="image_generation",
    ),
    Drawn(
        path=EDITS,
        summary="Edit an image",
        request=ImageEditRequest,
        answers={JSON: ImagesAnswer, EVENTS: None, **_FILES},
        example={
            "model": "tiny-draw",
            "prompt": "a blue square",
            "image": "https://images.example/circle.png",
            "strength": 0.8,
        },
        media={"image": "image", "mask": "image"},
        event="image_edit",
    ),
)

router = APIRouter(tags=["Images"], route_class=CallRoute)


def _handler(convention: Drawn) -> Callable[..., Awaitable[Response]]:
    async def handle(calling: CallingDep) -> Response:
        body = await bodies.read(calling.request, convention, max_files=MAX_FILES)
        entry = await calling.target(body, convention.pipelines)
        await calling.collect(body)
        created = int(time.time())
        call = Call(
            task=entry.pipeline,
            items=[body.item()],
            parameters=body.parameters(),
            single=True,
            finishing={"event": convention.event, "created_at": created},
            stream=bool(body.stream),
        )
        # Also used for an answer in one piece, as its time limit applies to silence and not to the
        # whole.
        parts = calling.stream(
            entry,
            call,
            timeout_s=calling.settings.image_timeout_s,
            keep_alive=KEEP_ALIVE if body.stream else b"",
        )
        if body.stream:
            return await streamed(calling.request, parts)
        images = _images(await calling.joined(parts))
        if body.is_file:
            return Response(images.files[0], media_type=f"image/{body.form}")
        answer = {
            "model": entry.model,
            "created": created,
            "id": f"img_{secrets.token_hex(12)}",
            "data": await _data(calling, entry, body, images),
            "size": f"{images.width}x{images.height}",
            "output_format": body.form,
        }
        return Response(_encode(answer), media_type=JSON)

    return handle


async def _data(
    calling: Calling, entry: DirectoryEntry, body: ImageGenerationRequest, images: Images
) -> list[dict[str, Any]]:
    if body.response_format == "b64_json":
        # The encoder writes bytes as base64.
        return [{"b64_json": file} for file in images.files]
    stored = await files.store(
        calling.calls,
        account_id=entry.account_id,
        deployment_id=entry.deployment_id,
        purpose=Purpose.IMAGE,
        contents=images.files,
        content_type=f"image/{body.form}",
    )
    return [{"url": files.link(calling.calls, calling.request, file)} for file in stored]


for _convention in CONVENTIONS:
    add_route(router, _convention, _convention.pipelines, _handler(_convention))
