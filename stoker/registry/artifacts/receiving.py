"""Receives files: whole, from an offset, or in parallel parts.

No database session is held while bytes arrive.
"""

import asyncio
import contextlib
import hashlib

from stoker.base.config import Settings
from stoker.base.errors import (
    ConflictError,
    InvalidRequestError,
    NotFoundError,
    PayloadTooLargeError,
)
from stoker.platform.web.context import Platform
from stoker.platform.web.disk import full_disk_reported
from stoker.platform.web.outage import lost_store_reported
from stoker.registry.artifacts import layout, repository, service
from stoker.registry.artifacts.message import Address, ContentRange, DigestMismatchError, UploadBody
from stoker.registry.artifacts.parts import (
    Finish,
    PartReception,
    PartTarget,
    open_file,
    reserve,
    size_mismatch,
    too_large,
)
from stoker.registry.artifacts.schemas import Part, ReceivedFile
from stoker.registry.artifacts.streaming import Body, UploadTransfer, transfers
from stoker.store import db
from stoker.store.db import Session
from stoker.store.tables.artifacts import ArtifactStatus, Upload, UploadFile

GIB = 1024**3


async def put_file(platform: Platform, address: Address, message: UploadBody) -> ReceivedFile:
    """Receives a whole file, or the rest of one from the offset in its Content-Range.

    A whole file replaces an earlier file at the same path. Each full part counts once it is
    durable, so an interrupted transfer can resume.
    """
    service.validate_path(address.path)
    with full_disk_reported(), lost_store_reported():
        # The address contains the account, so a caller cannot replace another account's transfer.
        async with transfers.enter(address.upload_id, address) as transfer:
            place = await _begin_file(platform, address, message)
            return await _FileReception(platform, place, message, transfer).run()


async def put_part(platform: Platform, address: Address, number: int, message: UploadBody) -> Part:
    """Receives one part of a file. Parts may come in any order and in parallel."""
    service.validate_path(address.path)
    with full_disk_reported(), lost_store_reported():
        async with transfers.enter(address.upload_id) as transfer:
            place, expected = await _begin_part(platform, address, number, message)
            limit = place.part_size if expected is None else expected
            excess = _larger_part(limit) if expected is None else _excess(expected)
            body = Body(message.chunks, transfer, limit, excess)
            async with PartReception.open(platform, place, number) as part:
                await part.copy(body, limit)
                await body.end()
                _check_length(part.size, expected)
                if not part.size:
                    raise _empty(number)
                message.check_digest(part.sha256)
                await part.store()
            return Part(number=number, size=part.size, sha256=part.sha256)


async def get_file(session: Session, address: Address) -> ReceivedFile:
    """Returns the received state of a file. Raises `NotFoundError` if no upload of the file was
    started.
    """
    service.validate_path(address.path)
    _, upload = await service.get_upload(
        session, address.account_id, address.artifact_id, address.upload_id
    )
    file = await repository.file(session, upload.id, address.path)
    if file is None:
        raise _file_not_found()
    return await _state(session, upload, file)


def _file_not_found() -> NotFoundError:
    return NotFoundError("File not found", code="file_not_found", param="path")


async def remove_file(platform: Platform, address: Address) -> None:
    """Removes a file and all its bytes from an open session.

    Raises `NotFoundError` if the session has no such file.
    """
    service.validate_path(address.path)
    # Ends a running transfer of the file, like a transfer that replaces it.
    async with transfers.enter(address.upload_id, address):
        async with platform.database.transaction() as session:
            upload = await _open_upload(session, address)
            file = await repository.file(session, upload.id, address.path)
            if file is None:
                raise _file_not_found()
            await repository.drop_file(session, file)
        await platform.blobs.remove_file(file.blob_key)


class _FileReception:
    """Cuts a body into parts. The next part arrives while the previous one becomes durable."""

    def __init__(
        self, platform: Platform, place: PartTarget, message: UploadBody, transfer: UploadTransfer
    ) -> None:
        self._platform = platform
        self._place = place
        self._message = message
        part = message.range
        self._start = part.start if part else 0
        self._end = part.end if part else message.length
        # Parts are always hashed. Hashing everything twice costs as much as all other work
        # together. The message as a whole is hashed only if its client requests that.
        self._hash = None if message.digest is None else hashlib.sha256()
        self._storing: asyncio.Task[None] | None = None
        expected = None if self._end is None else self._end - self._start
        limit = place.limit if expected is None else expected
        excess = too_large(place.session_limit) if expected is None else _excess(expected)
        self._body = Body(message.chunks, transfer, limit, excess)

    async def run(self) -> ReceivedFile:
        number = self._start // self._place.part_size + 1
        try:
            while not await self._receive(number):
                number += 1
            await self._stored()
        except DigestMismatchError:
            await self._settled()
            await _forget(self._platform, self._place, self._message, number)
            raise
        finally:
            await self._settled()
        async with self._platform.database.reading() as session:
            upload, file = await open_file(session, self._place)
            return await _state(session, upload, file)

    async def _receive(self, number: int) -> bool:
        """Receives a part. Returns True if it was the last one of the message."""
        part_size = self._place.part_size
        limit = part_size
        if self._end is not None:
            limit = min(limit, self._end - layout.offset(number, part_size))
        async with contextlib.AsyncExitStack() as stack:
            reception = PartReception.open(self._platform, self._place, number, self._hash)
            part = await stack.enter_async_context(reception)
            await part.copy(self._body, limit)
            is_last = part.size < part_size or part.end == self._end
            if is_last:
                await self._check(part)
            await self._stored()
            self._storing = asyncio.create_task(
                _store(stack.pop_all(), part, self._finish if is_last else None)
            )
        return is_last

    async def _stored(self) -> None:
        """Waits until the previous part is stored."""
        if self._storing is not None:
            storing, self._storing = self._storing, None
            await storing

    async def _settled(self) -> None:
        """Waits until no part is being stored. Ignores the outcome."""
        if self._storing is not None:
            storing, self._storing = self._storing, None
            await asyncio.wait([storing])
            with contextlib.suppress(asyncio.CancelledError):
                storing.exception()

    async def _check(self, last: PartReception) -> None:
        await self._body.end()
        expected = None if self._end is None else self._end - self._start
        _check_length(last.end - self._start, expected)
        if self._hash is not None:
            self._message.check_digest(self._hash.digest())

    def _finish(self, file: UploadFile, last: PartReception) -> None:
        if file.size is None:
            file.size = last.end
        if self._start == 0 and last.end == file.size:
            if self._hash is not None:
                file.sha256 = self._hash.digest()
            elif last.number == 1:
                file.sha256 = last.sha256


async def _store(
    cleanup: contextlib.AsyncExitStack, part: PartReception, finish: Finish | None
) -> None:
    async with cleanup:
        await part.store(finish)


async def _begin_file(platform: Platform, address: Address, message: UploadBody) -> PartTarget:
    replaced = None
    async with platform.database.transaction() as session:
        upload = await _open_upload(session, address)
        file = await repository.file(session, upload.id, address.path)
        if message.range is None:
            if file is not None:
                replaced = file.blob_key
                await repository.drop_file(session, file)
            file = await _new_file(session, platform, upload, address.path)
            file.size = message.length
            file.end_awaited = message.length is None
            added = message.length or 0
        else:
            if file is None:
                file = await _new_file(session, platform, upload, address.path)
            added = await _declare_size(session, upload, file, message.range.total)
            await _check_start(session, upload, file, message.range)
        place = await _place(session, platform, address, upload, file)
        _check_limit(place, file.size or 0)
        await reserve(session, platform, place, added)
        platform.quotas.check_disk(message.length or 0)
    if replaced is not None:
        await platform.blobs.remove_file(replaced)
    return place


async def _begin_part(
    platform: Platform, address: Address, number: int, message: UploadBody
) -> tuple[PartTarget, int | None]:
    """Returns the part's file, and the expected size of the part in bytes or None if it is
    unknown.
    """
    async with platform.database.transaction() as session:
        upload = await _open_upload(session, address)
        file = await repository.file(session, upload.id, address.path)
        if file is None:
            file = await _new_file(session, platform, upload, address.path)
        start = layout.offset(number, upload.part_size)
        added = 0
        if message.range is not None:
            if message.range.start != start:
                raise _wrong_offset(start)
            added = await _declare_size(session, upload, file, message.range.total)
        expected = message.length
        if file.size is not None:
            expected = max(0, min(upload.part_size, file.size - start))
        declared = message.length if message.range is None else message.range.length
        _check_part(number, declared, expected, upload.part_size)
        place = await _place(session, platform, address, upload, file)
        _check_limit(place, start + (expected or 0))
        await reserve(session, platform, place, added)
        platform.quotas.check_disk(expected or 0)
    return place, expected


def _check_part(number: int, told: int | None, expected: int | None, part_size: int) -> None:
    if expected == 0:
        raise _empty(number)
    if told is not None and told > part_size:
        raise _larger_part(part_size)
    if told is not None and told != expected:
        raise InvalidRequestError(f"Part {number} of this file has {expected} bytes, not {told}.")


async def _open_upload(session: Session, address: Address) -> Upload:
    artifact, upload = await service.get_upload(
        session, address.account_id, address.artifact_id, address.upload_id, lock=True
    )
    service.refuse_closed(upload)
    if not address.is_import:
        service.refuse_clients_of_import(upload)
    if artifact.status == ArtifactStatus.FAILED:
        # The artifact's files were refused, and the client now corrects them.
        artifact.status = ArtifactStatus.UPLOADING
        artifact.failure_code = artifact.failure_message = None
        artifact.updated_at = db.now()
    return upload


async def _new_file(session: Session, platform: Platform, upload: Upload, path: str) -> UploadFile:
    limit = platform.settings.artifact_files_limit
    if await repository.count_files(session, upload.id) >= limit:
        raise PayloadTooLargeError(f"An artifact has at most {limit} files on this server.")
    upload.files_begun += 1
    file = UploadFile(
        upload_id=upload.id,
        path=path,
        blob_key=f"{service.folder(upload.artifact_id, upload.id)}/{upload.files_begun}",
        size=None,
        end_awaited=False,
    )
    session.add(file)
    return file


async def _declare_size(session: Session, upload: Upload, file: UploadFile, total: int) -> int:
    """Records the total size of a file. Returns the bytes that were not declared before."""
    before, known = file.size, file.size
    if known is None and not file.end_awaited:
        parts = await repository.parts(session, upload.id, file.path)
        known = layout.file_state(file, parts, upload.part_size).size
    if known is not None and known != total:
        raise size_mismatch(total, known)
    file.size = total
    file.end_awaited = False
    return total if before is None else 0


async def _check_start(
    session: Session, upload: Upload, file: UploadFile, given: ContentRange
) -> None:
    parts = await repository.parts(session, upload.id, file.path)
    state = layout.file_state(file, parts, upload.part_size)
    if given.start > state.received or given.start % upload.part_size:
        raise _wrong_offset(state.received - state.received % upload.part_size)
    if given.end % upload.part_size and given.end != given.total:
        raise InvalidRequestError(
            f"The body must end at a multiple of part_size ({upload.part_size} bytes) "
            f"or at the end of the file, not at offset {given.end}.",
            param="Content-Range",
        )


async def _place(
    session: Session, platform: Platform, address: Address, upload: Upload, file: UploadFile
) -> PartTarget:
    limit = session_limit(platform.settings)
    other_bytes = await repository.received_bytes(session, upload.id, beside=file.path)
    return PartTarget(
        account_id=address.account_id,
        artifact_id=address.artifact_id,
        upload_id=address.upload_id,
        path=address.path,
        blob_key=file.blob_key,
        part_size=upload.part_size,
        session_limit=limit,
        limit=max(0, limit - other_bytes),
        declared_bytes=upload.declared_bytes or 0,
    )


def session_limit(settings: Settings) -> int:
    """Returns the maximum bytes of all files of a session together."""
    return int(settings.artifact_limit_gib * GIB)


async def _forget(platform: Platform, place: PartTarget, message: UploadBody, last: int) -> None:
    """Drops the recorded parts of a message with a wrong digest."""
    with contextlib.suppress(ConflictError):
        async with platform.database.transaction() as session:
            _, file = await open_file(session, place)
            if message.range is None:
                await repository.drop_file(session, file)
            else:
                first = message.range.start // place.part_size + 1
                await repository.drop_parts(session, place.upload_id, place.path, first, last)
        if message.range is None:
            await platform.blobs.remove_file(place.blob_key)


async def _state(session: Session, upload: Upload, file: UploadFile) -> ReceivedFile:
    parts = await repository.parts(session, upload.id, file.path)
    return ReceivedFile.of(file, layout.file_state(file, parts, upload.part_size))


def _check_limit(place: PartTarget, end: int) -> None:
    if end > place.limit:
        raise too_large(place.session_limit)


def _check_length(received: int, expected: int | None) -> None:
    if expected is not None and received != expected:
        raise InvalidRequestError(
            f"The body ended after {received} bytes; its headers announced {expected}."
        )


def _excess(expected: int) -> InvalidRequestError:
    return InvalidRequestError(f"The body has more than the {expected} bytes that were announced.")


def _larger_part(part_size: int) -> PayloadTooLargeError:
    return PayloadTooLargeError(f"A part has at most {part_size} bytes in this session.")


def _empty(number: int) -> InvalidRequestError:
    return InvalidRequestError(
        f"Part {number} has no bytes: it is empty, or begins after the end of the file.",
        param="number",
    )


def _wrong_offset(right: int) -> ConflictError:
    return ConflictError(
        f"The body of this request must begin at offset {right}.",
        code="offset_mismatch",
        param="Content-Range",
    )
