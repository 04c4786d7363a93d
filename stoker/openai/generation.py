"""The routes of generated text: one handler for all conventions, whole answers and streams."""

import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

from fastapi import APIRouter, Request, Response
from pydantic import ValidationError

from stoker.deployments.directory import Entry
from stoker.errors import InvalidRequestError, from_validation
from stoker.inference.convention import EVENTS, Convention, add_route, streamed
from stoker.inference.tasks import Prefer, TaskRoute, check_pipeline, unless_gone, wait_seconds
from stoker.keys.auth import Caller
from stoker.llm.families import IMAGE_TEXT_TO_TEXT
from stoker.openai import chat, completions, response_object
from stoker.openai import responses as responses_api
from stoker.openai.messages import check_images
from stoker.tasks.registry import GENERATING
from stoker.web.context import Services, ServicesDep
from stoker.web.http import require_json
from stoker.web.principal import Principal
from stoker.wire import schema_limits as limits
from stoker.wire.generation import Generation


class Asked(Protocol):
    """A request for generated text."""

    model: str | None

    def generation(self, answer: dict[str, Any]) -> Generation: ...


@dataclass(frozen=True, kw_only=True)
class Generating(Convention[Any]):
    prefix: str
    """Of the answers' ids."""


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

router = APIRouter(tags=["Generated text"], route_class=TaskRoute)


def _handler(convention: Generating) -> Callable[..., Awaitable[Response]]:
    async def handle(
        request: Request, caller: Caller, services: ServicesDep, prefer: Prefer = None
    ) -> Response:
        require_json(request)
        body = _parsed(convention, await request.body())
        entry, generation = prepare(services, convention, caller, body)
        limits: dict[str, Any] = {
            "wait_s": wait_seconds(services.settings, prefer),
            "timeout_s": services.settings.inference_timeout_s,
        }
        if any(generation.media()):
            await unless_gone(request, services.media.collect(generation))
        if not generation.stream:
            work = services.runtime.call(entry.deployment_id, generation, **limits)
            content = await unless_gone(request, work)
            return Response(content, media_type="application/json")
        parts = services.runtime.stream(entry.deployment_id, generation, **limits)
        return await streamed(request, parts)

    return handle


def prepare(
    services: Services, convention: Generating, caller: Principal, body: Asked
) -> tuple[Entry, Generation]:
    """Whom a request is for, and what it asks for; its media is still to be collected.

    Raises `InvalidRequestError`, `EndpointNotSupportedError` and what `Directory.resolve` does.
    """
    entry = services.directory.resolve(caller, body.model)
    check_pipeline(entry, GENERATING)
    answer = {
        "id": f"{convention.prefix}{secrets.token_hex(12)}",
        "created": int(time.time()),
        "model": entry.model,
    }
    generation = body.generation(answer)
    _check_schemas(generation)
    images = list(generation.media())
    check_images(images, taken=entry.pipeline == IMAGE_TEXT_TO_TEXT)
    return entry, generation


def _check_schemas(generation: Generation) -> None:
    """Raise `InvalidRequestError` for a schema that is too large, or cannot be passed on."""
    given: list[tuple[str, Any]] = []
    if tools := generation.tools:
        given += [
            (tools.schema_field.format(index), one["function"].get("parameters"))
            for index, one in enumerate(tools.functions)
        ]
    if (guide := generation.guide) and guide.kind == "json_schema":
        given.append((guide.field, guide.value))
    for field, schema in given:
        if what := limits.excess(schema):
            raise InvalidRequestError(f"'{field}' {what}.", param=field)


def _parsed(convention: Generating, body: bytes) -> Asked:
    model: Any = convention.request
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        raise from_validation([*error.errors()], model.model_fields) from error


for _convention in CONVENTIONS:
    add_route(router, _convention, GENERATING, _handler(_convention))
