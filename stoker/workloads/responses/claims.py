"""`Idempotency-Key` of stored responses: a repeated request gets the stored response."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from sqlalchemy.exc import IntegrityError

from stoker.base.errors import InvalidRequestError
from stoker.inference.openai.responses import ResponseRequest
from stoker.platform.web import idempotency
from stoker.platform.web.context import Platform
from stoker.platform.web.principal import Principal
from stoker.store import db
from stoker.store.db import Session
from stoker.store.tables.idempotency import IdempotencyRecord
from stoker.store.tables.responses import StoredResponse
from stoker.tenancy.keys.auth import Reach
from stoker.workloads.responses import content
from stoker.workloads.responses.following import get

_HEADER = "Idempotency-Key"
_MAX_LENGTH = 255
_encode = msgspec.json.Encoder(order="deterministic").encode


@dataclass(frozen=True)
class Claim:
    """A request with an `Idempotency-Key`."""

    record_id: str
    body_sha256: str


def claim(caller: Principal, headers: Mapping[str, str], body: ResponseRequest) -> Claim | None:
    """Returns None without an `Idempotency-Key`. Raises `InvalidRequestError` for a bad one."""
    key = headers.get(_HEADER.lower())
    if key is None:
        return None
    if not 1 <= len(key) <= _MAX_LENGTH:
        raise InvalidRequestError(
            f"'{_HEADER}' needs between 1 and {_MAX_LENGTH} characters.", param=_HEADER
        )
    if body.stream and not body.background:
        raise InvalidRequestError(
            f"A stream cannot be repeated. Leave '{_HEADER}' out, or send \"background\": true.",
            param=_HEADER,
        )
    account = headers.get("x-stoker-account", "")
    sent = {**content.fields_of(body), "input": content.items_of(body.input, "")}
    return Claim(
        idempotency.record_id(caller, account, "POST", "/v1/responses", key),
        hashlib.sha256(_encode(sent)).hexdigest(),
    )


async def claimed(platform: Platform, reach: Reach, found: Claim) -> Mapping[str, Any] | None:
    """Returns the response of the first request, as it is now. None if there was no such request.

    Raises `ConflictError` if the first request had another body.
    """
    async with platform.database.reading() as session:
        record = await session.get(IdempotencyRecord, found.record_id)
        if record is None:
            return None
        if record.body_sha256 != found.body_sha256:
            raise idempotency.mismatch()
        row = await get(session, reach, record.object_id or "")
    return content.response_of(platform.secret, row)


async def add(session: Session, platform: Platform, new: Claim, row: StoredResponse) -> None:
    """Adds the record of a first request. Raises `ConflictError` if another request was first."""
    session.add(
        IdempotencyRecord(
            id=new.record_id,
            body_sha256=new.body_sha256,
            response=platform.secret.seal(b""),
            created_at=db.now(),
            account_id=row.account_id,
            object_id=row.id,
        )
    )
    try:
        await session.flush()
    except IntegrityError as error:
        raise idempotency.in_progress() from error
