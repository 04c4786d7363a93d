"""Stores responses, and continues conversations from stored ones."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from typing import Any

import msgspec

from stoker.base.errors import (
    ConflictError,
    InvalidRequestError,
    NotFoundError,
    RateLimitError,
)
from stoker.base.fairness import Tier
from stoker.inference.openai.messages import MAX_MESSAGES
from stoker.inference.openai.response_calls import ResponseRecord
from stoker.inference.openai.responses import ResponseRequest
from stoker.platform.jobs import repository as jobs
from stoker.platform.jobs.runner import JobRunner
from stoker.platform.sealing import Sealer, new_key
from stoker.platform.web.context import Platform
from stoker.platform.web.principal import Principal, Scope
from stoker.registry.deployments.directory import DirectoryEntry
from stoker.store import db
from stoker.store.tables.jobs import UNFINISHED
from stoker.store.tables.responses import ResponseStatus, StoredResponse
from stoker.tenancy.keys.auth import Reach
from stoker.workloads.responses import claims, content, following, repository
from stoker.workloads.responses.claims import Claim

MAX_CHAIN = 128
"""Maximum number of earlier responses of a conversation."""
MAX_CHAIN_BYTES = 4 << 20
"""Maximum size of their requests and answers together."""


class StoredResponses:
    """The `ResponseKeeper`."""

    def __init__(self, platform: Platform, runner: JobRunner[Any, Any]) -> None:
        self._platform = platform
        self._runner = runner

    async def extend(self, caller: Principal, body: ResponseRequest) -> None:
        if body.previous_response_id is None:
            return
        items = await self._chain(_reach(caller), body.previous_response_id)
        own = content.items_of(body.input, "")
        if len(items) + len(own) > MAX_MESSAGES:
            raise _too_long(f"more than {MAX_MESSAGES} items")
        for item in own:
            del item["id"]
        earlier = content.input_of(items)
        now = body.input if not isinstance(body.input, str) else content.input_of(own)
        body.input = [*earlier, *now]

    async def _chain(self, reach: Reach, response_id: str) -> list[Any]:
        """Returns the items of a response and of the responses that it continues, oldest first."""
        found: list[StoredResponse] = []
        size, next_id = 0, response_id
        async with self._platform.database.reading() as session:
            while next_id:
                row = _usable(await repository.get(session, reach, next_id), next_id, response_id)
                size += row.stored_bytes
                found.append(row)
                if len(found) > MAX_CHAIN or any(row.id == other.id for other in found[:-1]):
                    raise _too_long(f"more than {MAX_CHAIN} responses")
                if size > MAX_CHAIN_BYTES:
                    raise _too_long(f"more than {MAX_CHAIN_BYTES} bytes")
                next_id = row.parent_id or ""
        items: list[Any] = []
        for row in reversed(found):
            opened = content.sealer(self._platform.secret, row)
            items += opened.unseal(row.request)["input"]
            items += opened.unseal(row.answer)["output"]
            await asyncio.sleep(0)
        return items

    def claim(
        self, caller: Principal, headers: Mapping[str, str], body: ResponseRequest
    ) -> Claim | None:
        return claims.claim(caller, headers, body)

    async def claimed(self, caller: Principal, claim: Claim) -> Mapping[str, Any] | None:
        return await claims.claimed(self._platform, _reach(caller), claim)

    async def begin(
        self, caller: Principal, entry: DirectoryEntry, record: ResponseRecord
    ) -> StoredResponse:
        row = self._row(caller, entry, record)
        platform = self._platform
        async with platform.database.reading() as session:
            await platform.quotas.check_storage(session, row.account_id, row.stored_bytes)
        return row

    async def keep(
        self, begun: StoredResponse, response: bytes, claim: Claim | None = None
    ) -> None:
        row = begun
        answered: dict[str, Any] = msgspec.json.decode(response)
        row.answer = content.sealer(self._platform.secret, row).seal(answered)
        row.stored_bytes = len(row.request) + len(row.answer)
        failed = answered["status"] == "failed"
        row.status = (ResponseStatus.FAILED if failed else ResponseStatus.COMPLETED).value
        row.completed_at = db.now()
        async with self._platform.database.transaction() as session:
            if claim:
                await claims.add(session, self._platform, claim, row)
            session.add(row)

    async def enqueue(self, begun: StoredResponse, claim: Claim | None) -> Mapping[str, Any]:
        row = begun
        queued = content.response_of(self._platform.secret, row)
        limit = self._platform.settings.responses_queued
        async with self._platform.database.transaction() as session:
            if claim:
                await claims.add(session, self._platform, claim, row)
            if await jobs.unfinished(session, StoredResponse, row.deployment_id) >= limit:
                raise RateLimitError(
                    f"This deployment has {limit} responses that have not ended. Try again later.",
                    code="queue_full",
                    retry_after_s=10,
                )
            session.add(row)
        self._runner.wake()
        return queued

    def _row(
        self, caller: Principal, entry: DirectoryEntry, record: ResponseRecord
    ) -> StoredResponse:
        """Returns a row with a response that has the status `queued`."""
        body, answer = record.body, record.generation.answer
        response_id: str = answer["id"]
        queued: dict[str, Any] = {
            "id": response_id,
            "object": "response",
            "created_at": answer["created"],
            "model": entry.model,
            **answer["settings"],
            "service_tier": answer.get("service_tier", Tier.DEFAULT),
            "status": "queued",
            "completed_at": None,
            "error": None,
            "incomplete_details": None,
            "output": [],
            "usage": None,
        }
        request: dict[str, Any] = {"input": content.items_of(record.input, response_id)}
        if body.background:
            request["body"] = content.fields_of(body)
            request["whole_input"] = content.items_of(body.input, response_id)
            request["tier"] = queued["service_tier"]
        key = new_key(self._platform.secret)
        sealer = Sealer(self._platform.secret, key)
        row = StoredResponse(
            id=response_id,
            account_id=entry.account_id,
            deployment_id=entry.deployment_id,
            api_key=caller.public_id,
            model=entry.model,
            parent_id=body.previous_response_id,
            is_background=bool(body.background),
            content_key=key,
            request=sealer.seal(request),
            answer=sealer.seal(queued),
            status=ResponseStatus.QUEUED.value,
            progress=0.0,
            tries=0,
            losses=0,
            created_at=db.now(),
        )
        row.stored_bytes = len(row.request) + len(row.answer)
        return row

    def follow(self, account_id: str, response_id: str, after: int = -1) -> AsyncGenerator[bytes]:
        """Yields the events of a response after a sequence number. Waits until it has ended."""
        return following.events(self._platform, account_id, response_id, after)


def _reach(caller: Principal) -> Reach:
    account_id = caller.account_id or ""
    is_limited = caller.scope is Scope.DEPLOYMENT
    return Reach(account_id, caller.deployment_ids if is_limited else None, caller.key_id)


def _usable(row: StoredResponse | None, response_id: str, asked_id: str) -> StoredResponse:
    """Returns an earlier response. Raises an error if it cannot be continued."""
    field = "previous_response_id"
    if row is None and response_id != asked_id:
        raise NotFoundError(
            f"'{asked_id[:64]}' continues a response that was deleted. Send the whole conversation "
            "as 'input'.",
            code="response_not_found",
            param=field,
        )
    if row is None:
        raise NotFoundError(
            'The previous response was not found. Only responses with "store": true are stored.',
            code="response_not_found",
            param=field,
        )
    if row.status in UNFINISHED:
        raise ConflictError(
            f"The response '{row.id}' has not ended. Continue it when its status is 'completed'.",
            code="response_not_ended",
            param=field,
        )
    if row.status != ResponseStatus.COMPLETED:
        raise InvalidRequestError(
            f"The response '{row.id}' is {row.status}, so it cannot be continued.", param=field
        )
    return row


def _too_long(limit: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"The conversation has {limit}, the limit of stored conversations. Compact it, or send it "
        "as 'input'.",
        code="conversation_too_long",
        param="previous_response_id",
    )
