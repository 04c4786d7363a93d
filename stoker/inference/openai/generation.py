"""Routes for generated text: one handler for all conventions, for whole answers and streams."""

import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

from fastapi import APIRouter, Response

from stoker.base.errors import InvalidRequestError
from stoker.inference import json_bodies
from stoker.inference.call import CallingDep, CallRoute
from stoker.inference.convention import EVENTS, Convention, add_route, streamed
from stoker.inference.openai import chat, completions, response_object
from stoker.inference.openai import responses as responses_api
from stoker.inference.openai.messages import check_images
from stoker.models.llm.model_types import IMAGE_TEXT_TO_TEXT
from stoker.models.tasks.registry import GENERATING
from stoker.platform.web.http import require_json
from stoker.registry.deployments.directory import DirectoryEntry
from stoker.wire import schema_limits as limits
from stoker.wire.generation_request import Generation


class GenerationBody(Protocol):
    """Interface of requests for generated text."""

    model: str | None

    def generation(self, answer: dict[str, Any]) -> Generation: ...


@dataclass(frozen=True, kw_only=True)
class Generating(Convention[Any]):
    prefix: str
    """Prefix of the answers' ids."""
    has_images: bool = True
    """True if requests contain messages, which may hold images."""


CHAT = Generating(
    path="/v1/chat/completions",
    summary="Create a chat completion",
    request=chat.ChatRequest,
    answers={"application/json": chat.ChatCompletion, EVENTS: None},
    prefix="chatcmpl-",
    example=chat.EXAMPLE,
)
CONVENTIONS = (
    CHAT,
    Generating(
        path="/v1/completions",
        summary="Create a completion",
        request=completions.CompletionRequest,
        answers={"application/json": completions.Completion, EVENTS: None},
        prefix="cmpl-",
        has_images=False,
        example=completions.EXAMPLE,
    ),
    Generating(
        path="/v1/responses",
        summary="Create a response",
        request=responses_api.ResponseRequest,
        answers={"application/json": response_object.ResponseObject, EVENTS: None},
        prefix="resp_",
        example=responses_api.EXAMPLE,
    ),
    Generating(
        path="/v1/responses/input_tokens",
        summary="Count the input tokens of a response",
        request=responses_api.InputTokensRequest,
        answers={"application/json": response_object.InputTokens},
        prefix="resp_",
        example=responses_api.EXAMPLE,
    ),
)

router = APIRouter(tags=["Generated text"], route_class=CallRoute)


def _handler(convention: Generating) -> Callable[..., Awaitable[Response]]:
    async def handle(calling: CallingDep) -> Response:
        require_json(calling.request)
        body = await json_bodies.read(
            calling.request, convention.request, has_media=convention.has_images
        )
        entry = await calling.target(body, GENERATING)
        generation = prepare(entry, convention, body)
        if not generation.stream:
            content = await calling.answer(entry, generation, generation)
            return Response(content, media_type="application/json")
        await calling.collect(generation)
        return await streamed(calling.request, calling.stream(entry, generation))

    return handle


def prepare(entry: DirectoryEntry, convention: Generating, body: GenerationBody) -> Generation:
    """Returns the request for a deployment. The caller must still collect its media.

    Raises `InvalidRequestError`.
    """
    answer = {
        "id": f"{convention.prefix}{secrets.token_hex(12)}",
        "created": int(time.time()),
        "model": entry.model,
    }
    generation = body.generation(answer)
    _check_schemas(generation)
    images = list(generation.media())
    check_images(images, taken=entry.pipeline == IMAGE_TEXT_TO_TEXT)
    return generation


def _check_schemas(generation: Generation) -> None:
    """Raises `InvalidRequestError` for a schema that is too large or cannot be passed on."""
    schemas: list[tuple[str, Any]] = []
    if tools := generation.tools:
        schemas += [
            (tools.schema_field.format(index), tool["function"].get("parameters"))
            for index, tool in enumerate(tools.functions)
        ]
    if (guide := generation.guide) and guide.kind == "json_schema":
        schemas.append((guide.field, guide.value))
    for field, schema in schemas:
        if problem := limits.excess(schema):
            raise InvalidRequestError(f"'{field}' {problem}.", param=field)


for _convention in CONVENTIONS:
    add_route(router, _convention, GENERATING, _handler(_convention))
