"""Operations for generated text: one function answers all of them, whole or as a stream."""

import secrets
import time
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from stoker.base.errors import InvalidRequestError
from stoker.inference.openai import chat, completions
from stoker.inference.openai.messages import check_images
from stoker.inference.operation import (
    EVENTS,
    JSON,
    Answer,
    Operation,
    StreamedAnswer,
    WholeAnswer,
)
from stoker.inference.session import CallSession
from stoker.models.llm.model_types import IMAGE_TEXT_TO_TEXT
from stoker.models.tasks.registry import GENERATING
from stoker.registry.deployments.directory import DirectoryEntry
from stoker.wire import schema_limits as limits
from stoker.wire.generation_request import Generation

TAG = "Generated text"
CHAT_PREFIX = "chatcmpl-"
"""Prefix of the ids of chat completions."""
RESPONSE_PREFIX = "resp_"


class GenerationBody(Protocol):
    """Interface of requests for generated text."""

    model: str | None

    def generation(self, answer: dict[str, Any]) -> Generation: ...


def answering(
    prefix: str,
) -> Callable[[CallSession, DirectoryEntry, GenerationBody], Awaitable[Answer]]:
    """Returns the function that answers requests for generated text.

    Args:
        prefix: prefix of the answers' ids.
    """

    async def answer(session: CallSession, entry: DirectoryEntry, body: GenerationBody) -> Answer:
        generation = prepare(entry, body, prefix)
        if session.tier:
            generation.answer["service_tier"] = session.tier
        await session.collect(generation)
        if generation.stream:
            return StreamedAnswer(session.stream(entry, generation))
        return WholeAnswer(await session.run(entry, generation))

    return answer


OPERATIONS: tuple[Operation[Any], ...] = (
    Operation(
        path="/v1/chat/completions",
        summary="Create a chat completion",
        name="create_chat_completion",
        tag=TAG,
        request=chat.ChatRequest,
        answers={JSON: chat.ChatCompletion, EVENTS: None},
        example=chat.EXAMPLE,
        has_media_in_json=True,
        pipelines=GENERATING,
        answer=answering(CHAT_PREFIX),
    ),
    Operation(
        path="/v1/completions",
        summary="Create a completion",
        name="create_completion",
        tag=TAG,
        request=completions.CompletionRequest,
        answers={JSON: completions.Completion, EVENTS: None},
        example=completions.EXAMPLE,
        pipelines=GENERATING,
        answer=answering("cmpl-"),
    ),
)


def prepare(entry: DirectoryEntry, body: GenerationBody, prefix: str) -> Generation:
    """Returns the request for a deployment. The caller must still collect its media.

    Args:
        prefix: prefix of the answer's id.

    Raises `InvalidRequestError`.
    """
    answer = {
        "id": f"{prefix}{secrets.token_hex(12)}",
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
            (tools.field(index), tool["function"].get("parameters"))
            for index, tool in enumerate(tools.functions)
        ]
    if (guide := generation.guide) and guide.kind == "json_schema":
        schemas.append((guide.field, guide.value))
    for field, schema in schemas:
        if problem := limits.excess(schema):
            raise InvalidRequestError(f"'{field}' {problem}.", param=field)
