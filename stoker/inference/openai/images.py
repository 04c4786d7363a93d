"""`POST /v1/images/generations` and `/v1/images/edits`: generated images, as links or in the
answer.
"""

import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, Literal, get_args

import msgspec
from pydantic import BaseModel, Field

from stoker.inference.openai.image_requests import ImageEditRequest, ImageGenerationRequest
from stoker.inference.operation import (
    EVENTS,
    JSON,
    Answer,
    Operation,
    StreamedAnswer,
    WholeAnswer,
)
from stoker.inference.session import CallSession
from stoker.models.tasks.registry import MEDIA
from stoker.models.tasks.text_to_image import EDITS, GENERATIONS
from stoker.registry.deployments.directory import DirectoryEntry
from stoker.registry.files import service as files
from stoker.runtime.interface import KEEP_ALIVE, Call
from stoker.store.tables.files import Purpose
from stoker.wire.image_answer import ImageFormat, Images

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


def _serving(path: str) -> list[str]:
    """Returns the pipelines that serve a path."""
    return [pipeline.name for pipeline in MEDIA.values() if path in pipeline.paths]


def _drawing(
    event: Literal["image_generation", "image_edit"],
) -> Callable[[CallSession, DirectoryEntry, ImageGenerationRequest], Awaitable[Answer]]:
    """
    Args:
        event: name of the stream's events.
    """

    async def answer(
        session: CallSession, entry: DirectoryEntry, body: ImageGenerationRequest
    ) -> Answer:
        await session.collect(body)
        created = int(time.time())
        call = Call(
            task=entry.pipeline,
            items=[body.item()],
            parameters=body.parameters(),
            single=True,
            finishing={"event": event, "created_at": created},
            stream=bool(body.stream),
        )
        # Also used for an answer in one piece, as its time limit applies to silence and not to the
        # whole.
        parts = session.stream(
            entry,
            call,
            timeout_s=session.settings.image_timeout_s,
            keep_alive=KEEP_ALIVE if body.stream else b"",
        )
        if body.stream:
            return StreamedAnswer(parts)
        images = _images(await _joined(parts))
        if body.is_file:
            return WholeAnswer(images.files[0], f"image/{body.form}")
        content = {
            "model": entry.model,
            "created": created,
            "id": f"img_{secrets.token_hex(12)}",
            "data": await _data(session, entry, body, images),
            "size": f"{images.width}x{images.height}",
            "output_format": body.form,
        }
        return WholeAnswer(_encode(content))

    return answer


async def _joined(parts: AsyncGenerator[bytes]) -> bytes:
    async with aclosing(parts):
        return b"".join([part async for part in parts])


async def _data(
    session: CallSession, entry: DirectoryEntry, body: ImageGenerationRequest, images: Images
) -> list[dict[str, Any]]:
    if body.response_format == "b64_json":
        # The encoder writes bytes as base64.
        return [{"b64_json": file} for file in images.files]
    stored = await files.store(
        session.calls,
        account_id=entry.account_id,
        deployment_id=entry.deployment_id,
        purpose=Purpose.IMAGE,
        contents=images.files,
        content_type=f"image/{body.form}",
    )
    base_url = session.base_url()
    return [{"url": files.link(session.calls, base_url, file)} for file in stored]


OPERATIONS = (
    Operation(
        path=GENERATIONS,
        summary="Create images",
        name="create_images",
        tag="Images",
        request=ImageGenerationRequest,
        answers={JSON: ImagesAnswer, EVENTS: None, **_FILES},
        example={"model": "tiny-draw", "prompt": "a red circle", "seed": 1},
        max_files=MAX_FILES,
        pipelines=_serving(GENERATIONS),
        answer=_drawing("image_generation"),
    ),
    Operation(
        path=EDITS,
        summary="Edit an image",
        name="edit_an_image",
        tag="Images",
        request=ImageEditRequest,
        answers={JSON: ImagesAnswer, EVENTS: None, **_FILES},
        example={
            "model": "tiny-draw",
            "prompt": "a blue square",
            "image": "https://images.example/circle.png",
            "strength": 0.8,
        },
        media={"image": "image", "mask": "image"},
        max_files=MAX_FILES,
        pipelines=_serving(EDITS),
        answer=_drawing("image_edit"),
    ),
)
