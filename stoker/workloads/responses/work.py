"""Background responses: the `JobKind` of stored responses."""

import asyncio
from dataclasses import dataclass
from typing import Any

import msgspec

from stoker.base.errors import (
    ConflictError,
    InferenceTimeoutError,
    NotFoundError,
    StokerError,
)
from stoker.base.fairness import CURRENT_CALLER, Party, Tier
from stoker.inference.calls import Calls
from stoker.inference.openai.response_calls import generation_of
from stoker.inference.openai.responses import ResponseRequest
from stoker.platform.jobs.kind import Outcome
from stoker.runtime.interface import OnProgress
from stoker.store.db import Session
from stoker.store.tables.responses import StoredResponse
from stoker.workloads.responses import content, repository
from stoker.workloads.responses.event_log import ResponseEventLog


class BackgroundResponse:
    table = StoredResponse

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def perform(self, row: StoredResponse, on_progress: OnProgress) -> "AnsweredResponse":
        calls, settings = self._calls, self._calls.settings
        sealer = content.sealer(calls.secret, row)
        request = sealer.unseal(row.request)
        tier = Tier(request["tier"])
        CURRENT_CALLER.set(Party(row.account_id, row.api_key, tier=tier))
        entry = calls.directory.find(row.deployment_id)
        if entry is None:
            raise NotFoundError("Deployment not found", code="deployment_not_found")
        fields: dict[str, Any] = {**request["body"], "input": request["whole_input"]}
        body = ResponseRequest.model_validate(fields)
        generation = generation_of(
            calls, entry, body, response_id=row.id, created_at=row.created_at
        )
        generation.answer["service_tier"] = tier
        await self._begin_again(row)
        await calls.media.collect(generation)
        log = ResponseEventLog(calls.database, row, sealer)
        parts = calls.stream(
            entry,
            msgspec.structs.replace(generation, stream=True),
            wait_s=settings.load_timeout_s,
            timeout_s=settings.job_timeout_s,
            keep_alive=b"",
        )
        try:
            async with asyncio.timeout(settings.load_timeout_s + settings.job_timeout_s):
                answered = await log.answer(parts)
        except TimeoutError:
            raise InferenceTimeoutError(
                f"The response was not completed within {settings.job_timeout_s:g} s."
            ) from None
        return AnsweredResponse(answered, log.rest())

    async def _begin_again(self, row: StoredResponse) -> None:
        """Discards the events of an earlier attempt. Raises `ConflictError` if a client may have
        received them, because the next answer may differ.
        """
        database = self._calls.database
        async with database.reading() as session:
            if await repository.last_event(session, row.id) is None:
                return
        async with database.transaction() as session:
            if not await repository.discard_events(session, row):
                raise ConflictError(
                    "The server stopped while it answered, after a client had received events. "
                    "Another answer would contradict them. Create the response again.",
                    code="response_interrupted",
                )

    def outcome(self, row: StoredResponse, made: "AnsweredResponse") -> Outcome:
        sealed = content.sealer(self._calls.secret, row).seal(made.response)
        size = len(row.request) + len(sealed)
        return Outcome({"answer": sealed, "stored_bytes": size})

    async def keep(self, session: Session, row: StoredResponse, made: "AnsweredResponse") -> None:
        if made.events:
            repository.add_events(session, row.id, *made.events)
            await repository.add_event_bytes(session, row.id, len(made.events[1]))

    async def ended(self, session: Session, row: StoredResponse, error: StokerError | None) -> None:
        return None

    async def discard(self, made: "AnsweredResponse") -> None:
        return None


@dataclass(frozen=True)
class AnsweredResponse:
    """A response, and its last events."""

    response: dict[str, Any]
    events: tuple[int, bytes] | None
    """Events that are not stored yet: see `ResponseEventLog.rest`."""
