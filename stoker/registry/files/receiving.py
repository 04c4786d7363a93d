"""Receives files of clients. Their bytes go to the blob store in blocks, and every limit is checked
while they arrive.
"""

import contextlib
import hashlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from fastapi import Request

from stoker.base.errors import InvalidRequestError, PayloadTooLargeError, StokerError
from stoker.platform.quotas.limits import GIB, Quota
from stoker.platform.quotas.service import exceeded
from stoker.platform.web.context import Platform
from stoker.platform.web.disk import full_disk_reported
from stoker.platform.web.forms import FORM_BYTES, StreamedForm
from stoker.platform.web.http import declared_length, lift_body_limit
from stoker.platform.web.outage import lost_store_reported
from stoker.store.blobs import BlobWriter
from stoker.store.blobs.threads import on_disk
from stoker.store.db import uncut


@dataclass(frozen=True)
class ByteLimit:
    """Maximum bytes of a file, and the error if it is larger."""

    most: int
    excess: StokerError


def file_limit(platform: Platform) -> int:
    """Returns the maximum bytes of a file that a client uploads."""
    return int(platform.settings.file_limit_gib * GIB)


def file_too_large(limit: int) -> PayloadTooLargeError:
    return PayloadTooLargeError(
        f"The file is larger than {limit} bytes, the limit of this server.", param="file"
    )


async def limit_of(platform: Platform, account_id: str) -> ByteLimit:
    """Returns the limit of a file that an account uploads now."""
    most = file_limit(platform)
    async with platform.database.reading() as session:
        left = await platform.quotas.left(session, account_id, Quota.STORAGE_BYTES)
    if left is None or left >= most:
        return ByteLimit(most, file_too_large(most))
    async with platform.database.reading() as session:
        used, limit = (await platform.quotas.report(session, account_id))[Quota.STORAGE_BYTES]
    return ByteLimit(left, exceeded(Quota.STORAGE_BYTES, used=used, asked=left + 1, limit=limit))


@dataclass(frozen=True)
class ReceivedBytes:
    writer: BlobWriter
    size: int
    sha256: str


@contextlib.asynccontextmanager
async def received(
    platform: Platform, request: Request, form: StreamedForm, limit: ByteLimit
) -> AsyncGenerator[ReceivedBytes]:
    """Receives the file of a form and yields it. Its bytes are deleted unless `finish` of its
    writer was called.

    Raises the error of the limit, the errors of `StreamedForm.blocks`, `InvalidRequestError` if the
    file is empty, and `CapacityError` if the disk is full or the store does not answer.
    """
    lift_body_limit(request)
    announced = declared_length(request.headers) or 0
    if announced > limit.most + FORM_BYTES:
        raise limit.excess
    platform.quotas.check_local_disk(announced)
    digest = hashlib.sha256()
    with full_disk_reported(), lost_store_reported():
        writer = platform.blobs.writer()

        def take(block: bytearray) -> None:
            digest.update(block)
            writer.write(block)

        try:
            async for block in form.blocks(limit.most, limit.excess):
                platform.quotas.check_local_disk(len(block))
                # A thread cannot be cancelled, and must not write to a closed file.
                await uncut(on_disk(take, block))
            if not form.size:
                raise InvalidRequestError("The file is empty.", param="file")
            yield ReceivedBytes(writer, form.size, digest.hexdigest())
        finally:
            await uncut(writer.close())
