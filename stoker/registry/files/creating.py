"""Stores files of clients: their purposes, names and expiry."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

import msgspec
from fastapi import Request, Response

from stoker.base.errors import InvalidRequestError, StokerError
from stoker.base.ids import Prefix, new_id
from stoker.platform.web.context import Platform
from stoker.platform.web.forms import ANY_TYPE, StreamedForm
from stoker.platform.web.idempotency import Idempotency
from stoker.registry.files import schemas, service
from stoker.registry.files.receiving import limit_of, received
from stoker.registry.files.schemas import MAX_KEEP_S, MIN_KEEP_S
from stoker.store import db
from stoker.store.blobs import BlobWriter
from stoker.store.tables.files import NEVER, File, Purpose
from stoker.tenancy.keys.auth import Reach

ANCHOR, SECONDS = "expires_after[anchor]", "expires_after[seconds]"
BATCH_KEPT_S = 30 * 24 * 3600
"""Seconds after which files for batches expire if their client chooses no other time."""
PURPOSES = (Purpose.BATCH, Purpose.USER_DATA)
"""Purposes of uploads."""


@dataclass(frozen=True)
class FileDetails:
    """What a client says about its file."""

    purpose: Purpose
    filename: str
    content_type: str
    keep_s: int | None

    def expires_at(self, now: datetime) -> datetime:
        keep_s = self.keep_s
        if keep_s is None and self.purpose is Purpose.BATCH:
            keep_s = BATCH_KEPT_S
        return NEVER if keep_s is None else now + timedelta(seconds=keep_s)

    def row(self, reach: Reach, size: int) -> File:
        now = db.now()
        return File(
            id=new_id(Prefix.FILE),
            account_id=reach.account_id,
            deployment_id="",
            key_id=reach.key_id,
            owner_id=None,
            purpose=self.purpose.value,
            content_type=self.content_type,
            filename=self.filename,
            size=size,
            created_at=now,
            expires_at=self.expires_at(now),
        )


async def create(
    platform: Platform, request: Request, reach: Reach, idempotent: Idempotency
) -> Response:
    """Receives and stores a file. Returns the response."""
    form = StreamedForm(request, "file", ("purpose", ANCHOR, SECONDS), names_file=True)
    limit = await limit_of(platform, reach.account_id)
    async with received(platform, request, form, limit) as content:
        details = _details(form)
        fingerprint = _fingerprint(details, content.sha256)
        if known := await idempotent.known(200, fingerprint):
            return known
        file = details.row(reach, content.size)
        await finish(content.writer, file)
        return await _stored(platform, file, idempotent, fingerprint)


async def finish(writer: BlobWriter, file: File) -> None:
    """Stores the bytes of a client's file. A bucket's own links serve them as a download."""
    await writer.finish(file.blob_key, ANY_TYPE)


async def _stored(
    platform: Platform, file: File, idempotent: Idempotency, fingerprint: str
) -> Response:
    is_new = False
    try:
        async with platform.database.transaction() as session:

            async def created() -> schemas.File:
                nonlocal is_new
                await service.reserve(session, platform, file.account_id, [file])
                session.add(file)
                is_new = True
                return schemas.response(file)

            response = await idempotent.run(session, created, 200, fingerprint)
    except StokerError:
        await service.discard(platform.blobs, [file])
        raise
    if not is_new:
        await service.discard(platform.blobs, [file])
    return response


def checked_purpose(text: str | None) -> Purpose:
    """Returns the purpose of an upload.

    Raises `InvalidRequestError` if there is no such purpose.
    """
    if text is None:
        raise InvalidRequestError(f"'purpose' is missing. {_choices()}", param="purpose")
    for purpose in PURPOSES:
        if text == purpose.value:
            return purpose
    raise InvalidRequestError(
        f"This server has no use for the purpose '{text[:50]}'. {_choices()}", param="purpose"
    )


def _choices() -> str:
    return "Send 'batch' for the input of a batch, or 'user_data' for any other file."


def _details(form: StreamedForm) -> FileDetails:
    return FileDetails(
        checked_purpose(form.fields.get("purpose")),
        form.filename,
        form.content_type,
        _keep_s(form.fields),
    )


def _keep_s(fields: Mapping[str, str]) -> int | None:
    anchor, seconds = fields.get(ANCHOR), fields.get(SECONDS)
    if anchor is None and seconds is None:
        return None
    if anchor != "created_at":
        raise InvalidRequestError("must be 'created_at'.", param=ANCHOR)
    if seconds is None or not seconds.isascii() or not seconds.isdecimal() or len(seconds) > 9:
        raise _outside()
    if not MIN_KEEP_S <= int(seconds) <= MAX_KEEP_S:
        raise _outside()
    return int(seconds)


def _outside() -> InvalidRequestError:
    return InvalidRequestError(
        f"'{SECONDS}' must be a whole number from {MIN_KEEP_S} to {MAX_KEEP_S}.", param=SECONDS
    )


def _fingerprint(details: FileDetails, sha256: str) -> str:
    # The content type is left out, because clients may guess it differently.
    parts = [details.purpose.value, details.filename, details.keep_s, sha256]
    return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()
