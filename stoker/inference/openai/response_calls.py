"""Answers `/v1/responses`."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from stoker.base.errors import InvalidRequestError, PayloadTooLargeError
from stoker.inference.calls import Calls, ResponseKeeper
from stoker.inference.openai import response_object, responses
from stoker.inference.openai.generation import RESPONSE_PREFIX, TAG, prepare
from stoker.inference.openai.items import Input
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
from stoker.wire.generation_request import Generation

DROPPED = "x-stoker-dropped"
"""Header. Types of the hosted tools that were left out."""
_LAST = tuple(
    f"event: response.{status}\n".encode() for status in ("completed", "incomplete", "failed")
)


@dataclass(frozen=True)
class ResponseRecord:
    """A response to store: its request, and its beginning."""

    body: ResponseRequest
    input: Input
    """The request's own input, without the items of earlier responses."""
    generation: Generation


async def answer(session: CallSession, entry: DirectoryEntry, body: ResponseRequest) -> Answer:
    own, keeper, claim = body.input, None, None
    if body.stores or body.previous_response_id:
        keeper = _keeper(session.calls)
        claim = keeper.claim(session.caller, session.headers, body) if body.stores else None
        if claim and (earlier := await keeper.claimed(session.caller, claim)):
            return _replayed(session, keeper, entry, body, earlier)
        await keeper.extend(session.caller, body)
    if dropped := body.tool_list.dropped:
        session.add_header(DROPPED, ", ".join(dropped))
    needs_secret = body.is_sealed or has_sealed(body.input)
    generation = generation_of(session.calls if needs_secret else None, entry, body)
    if session.tier:
        generation.answer["service_tier"] = session.tier
    await session.collect(generation)
    record = ResponseRecord(body, own, generation)
    begun = None
    if keeper and body.stores:
        try:
            begun = await keeper.begin(session.caller, entry, record)
        except PayloadTooLargeError:
            # A request with the same key may have used the rest of the storage meanwhile.
            if claim and (earlier := await keeper.claimed(session.caller, claim)):
                return _replayed(session, keeper, entry, body, earlier)
            raise
    if keeper and body.background:
        queued = await keeper.enqueue(begun, claim)
        return _in_background(keeper, entry, body, queued)
    if generation.stream:
        parts = session.stream(entry, generation)
        if keeper and begun:
            parts = _kept(parts, lambda whole: keeper.keep(begun, whole))
        return StreamedAnswer(parts)
    whole = await session.run(entry, generation)
    if keeper and begun:
        await keeper.keep(begun, whole, claim)
    return WholeAnswer(whole)


def generation_of(
    calls: Calls | None,
    entry: DirectoryEntry,
    body: ResponseRequest,
    *,
    response_id: str | None = None,
    created_at: datetime | None = None,
) -> Generation:
    """Returns a request in its internal form. Opens sealed items. Raises `InvalidRequestError`.

    Args:
        calls: None if nothing is sealed.
        response_id: id of the answer. None makes a new one.
    """
    seals = AccountSeals(calls.secret, entry.account_id) if calls else None
    if seals:
        open_input(body.input, seals)
    generation = prepare(entry, body, RESPONSE_PREFIX)
    if response_id:
        generation.answer["id"] = response_id
    if created_at:
        generation.answer["created"] = int(created_at.timestamp())
    if seals and body.is_sealed:
        generation.answer["seal"] = msgspec.structs.asdict(seals.of(generation.answer["id"]))
    return generation


def _replayed(
    session: CallSession,
    keeper: ResponseKeeper,
    entry: DirectoryEntry,
    body: ResponseRequest,
    earlier: Mapping[str, Any],
) -> Answer:
    session.add_header("idempotency-replayed", "true")
    return _in_background(keeper, entry, body, earlier)


def _in_background(
    keeper: ResponseKeeper,
    entry: DirectoryEntry,
    body: ResponseRequest,
    stored: Mapping[str, Any],
) -> Answer:
    if body.stream:
        return StreamedAnswer(keeper.follow(entry.account_id, stored["id"]))
    return WholeAnswer(msgspec.json.encode(stored))


def _keeper(calls: Calls) -> ResponseKeeper:
    if calls.keeper is None:
        raise InvalidRequestError(
            "Responses cannot be stored here. Leave 'store', 'background' and "
            "'previous_response_id' out.",
            param="store",
        )
    return calls.keeper


async def _kept(
    parts: AsyncGenerator[bytes], keep: Callable[[bytes], Awaitable[None]]
) -> AsyncGenerator[bytes]:
    """Yields the parts. Stores the response before its last event is sent."""
    begun = b""
    async with aclosing(parts):
        async for part in parts:
            *events, begun = (begun + part).split(b"\n\n")
            for event in events:
                if event.startswith(_LAST):
                    data = event.partition(b"\ndata: ")[2]
                    await keep(msgspec.json.decode(data, type=_LastEvent).response)
            yield part


class _LastEvent(msgspec.Struct):
    response: msgspec.Raw


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
