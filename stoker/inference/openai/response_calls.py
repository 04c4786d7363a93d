"""Answers `/v1/responses`."""

from typing import Any

import msgspec

from stoker.inference.openai import response_object, responses
from stoker.inference.openai.generation import RESPONSE_PREFIX, TAG, prepare
from stoker.inference.openai.responses import ResponseRequest
from stoker.inference.openai.seals import AccountSeals, has_sealed, open_input
from stoker.inference.operation import (
    EVENTS,
    JSON,
    Answer,
    Operation,
    StreamedAnswer,
    WholeAnswer,
)
from stoker.inference.session import CallSession
from stoker.models.tasks.registry import GENERATING
from stoker.registry.deployments.directory import DirectoryEntry

DROPPED = "x-stoker-dropped"
"""Header. Types of the hosted tools that were left out."""


async def answer(session: CallSession, entry: DirectoryEntry, body: ResponseRequest) -> Answer:
    seals = None
    if body.is_sealed or has_sealed(body.input):
        seals = AccountSeals(session.calls.secret, entry.account_id)
        open_input(body.input, seals)
    if dropped := body.tool_list.dropped:
        session.add_header(DROPPED, ", ".join(dropped))
    generation = prepare(entry, body, RESPONSE_PREFIX)
    if seals and body.is_sealed:
        seal = seals.of(generation.answer["id"])
        generation.answer["seal"] = msgspec.structs.asdict(seal)
    await session.collect(generation)
    if generation.stream:
        return StreamedAnswer(session.stream(entry, generation))
    return WholeAnswer(await session.run(entry, generation))


OPERATIONS: tuple[Operation[Any], ...] = (
    Operation(
        path="/v1/responses",
        summary="Create a response",
        name="create_response",
        tag=TAG,
        request=responses.ResponseRequest,
        answers={JSON: response_object.ResponseObject, EVENTS: None},
        example=responses.EXAMPLE,
        has_media_in_json=True,
        pipelines=GENERATING,
        answer=answer,
    ),
    Operation(
        path="/v1/responses/input_tokens",
        summary="Count the input tokens of a response",
        name="count_the_input_tokens_of_response",
        tag=TAG,
        request=responses.InputTokensRequest,
        answers={JSON: response_object.InputTokens},
        example=responses.EXAMPLE,
        has_media_in_json=True,
        pipelines=GENERATING,
        answer=answer,
    ),
    Operation(
        path="/v1/responses/compact",
        summary="Compact a conversation",
        name="compact_response",
        tag=TAG,
        request=responses.CompactionRequest,
        answers={JSON: response_object.CompactedConversation},
        example=responses.EXAMPLE,
        has_media_in_json=True,
        pipelines=GENERATING,
        answer=answer,
    ),
)
