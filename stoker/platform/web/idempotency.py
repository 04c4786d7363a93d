"""`Idempotency-Key`: the same key and body get the first response again, another body gets a 409.

Records belong to the API key that made the request, and are sealed. A sign-in link is not stored: a
repeated request gets a 409.
"""

import hashlib
from collections.abc import Awaitable, Callable, Collection
from datetime import datetime, timedelta
from typing import Annotated

from fastapi import Header, Request, Response
from pydantic import BaseModel
from sqlalchemy.exc import IntegrityError

from stoker.base.errors import ConflictError, InvalidAPIKeyError
from stoker.platform.web import repository
from stoker.platform.web.context import PlatformDep
from stoker.platform.web.dependencies import made
from stoker.platform.web.principal import Principal, caller_of
from stoker.store import db
from stoker.store.db import Database, Session
from stoker.store.tables.idempotency import IdempotencyRecord

KEPT = timedelta(hours=24)


class Idempotency:
    def __init__(
        self,
        request: Request,
        platform: PlatformDep,
        idempotency_key: Annotated[
            str | None,
            Header(
                min_length=1,
                max_length=255,
                description="Repeating a request with the same key gives the first answer again.",
            ),
        ] = None,
    ) -> None:
        self._request = request
        caller = caller_of(request)
        if caller is None:
            raise InvalidAPIKeyError
        self._caller = caller
        self._secret = platform.secret
        self._database = platform.database
        self._key = idempotency_key

    async def known(self, status: int, fingerprint: str | None = None) -> Response | None:
        """Returns the stored response, before work is done that `run` would discard. Returns None
        if none is stored.

        Args:
            fingerprint: see `run`.
        """
        if self._key is None:
            return None
        fingerprint = fingerprint or await self._body_sha256()
        async with self._database.reading() as session:
            record = await session.get(IdempotencyRecord, self._record_id())
        return self._replay(record, fingerprint, status) if record else None

    async def run(
        self,
        session: Session,
        create: Callable[[], Awaitable[BaseModel]],
        status: int = 201,
        fingerprint: str | None = None,
        *,
        is_single_use: bool = False,
    ) -> Response:
        """Creates an object and stores the response in the same transaction, or returns the stored
        response.

        Args:
            fingerprint: SHA-256 of the request's content. None uses the body. Bodies of forms
                differ each time that they are sent.
            is_single_use: True if the response can be used only once. It is not stored, and a
                repeated request creates nothing.
        """
        if self._key is None:
            return _response((await create()).model_dump_json().encode(), status)
        body_sha256 = fingerprint or await self._body_sha256()
        if record := await session.get(IdempotencyRecord, self._record_id()):
            return self._replay(record, body_sha256, status)
        created = await create()
        content = created.model_dump_json().encode()
        session.add(
            IdempotencyRecord(
                id=self._record_id(),
                body_sha256=body_sha256,
                response=self._secret.seal(b"" if is_single_use else content),
                created_at=db.now(),
                account_id=self._caller.account_id or self._named_account() or None,
                object_id=getattr(created, "id", None),
            )
        )
        try:
            await session.flush()
        except IntegrityError as error:
            raise in_progress() from error
        return _response(content, status)

    async def _body_sha256(self) -> str:
        return hashlib.sha256(await self._request.body()).hexdigest()

    def _record_id(self) -> str:
        account = self._named_account()
        request = (self._request.method, self._request.url.path, self._key or "")
        return record_id(self._caller, account, *request)

    def _named_account(self) -> str:
        return self._request.headers.get("x-stoker-account", "")

    def _replay(self, record: IdempotencyRecord, body_sha256: str, status: int) -> Response:
        content = self._secret.unseal(record.response)
        if record.body_sha256 != body_sha256 or content is None:
            raise mismatch()
        if not content:
            raise ConflictError(
                "The answer to the first request with this Idempotency-Key is usable only "
                "once and is not repeated. Send the request with a new Idempotency-Key.",
                code="idempotency_secret",
                param="Idempotency-Key",
            )
        response = _response(content, status)
        response.headers["idempotency-replayed"] = "true"
        return response


def record_id(caller: Principal, account: str, method: str, path: str, key: str) -> str:
    """Returns the id of the record of a request.

    Args:
        account: account that an operator's request names.
    """
    # A key with fewer rights must not get the responses of a key with more rights.
    parts = (caller.key_id, account, method, path, key)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def in_progress() -> ConflictError:
    return ConflictError(
        "A request with this Idempotency-Key is under way; repeat it in a moment.",
        code="idempotency_in_progress",
    )


def mismatch() -> ConflictError:
    return ConflictError(
        "This Idempotency-Key was used with another body. Use a new key.",
        code="idempotency_mismatch",
        param="Idempotency-Key",
    )


def _response(content: bytes, status: int) -> Response:
    return Response(content, status_code=status, media_type="application/json")


Idempotent = Annotated[Idempotency, made(Idempotency)]


async def erase(session: Session, object_ids: Collection[str]) -> None:
    """Deletes the stored responses that mention objects, by their ids."""
    await repository.delete_records_of(session, object_ids)


async def forget_old(database: Database, before: datetime) -> None:
    """Deletes the records made before a time (the janitor keeps them for `KEPT`)."""
    async with database.transaction() as session:
        await repository.delete_records_before(session, before)
