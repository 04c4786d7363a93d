"""Stores one part of a file: first its bytes, then its row.

A part counts once it is durable and its row is committed. A process can be killed at any time: the
rows stay correct.
"""

import contextlib
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass

from stoker.base.errors import ConflictError, PayloadTooLargeError
from stoker.platform.quotas.limits import Quota
from stoker.platform.web.context import Platform
from stoker.registry.artifacts import layout, repository, service
from stoker.registry.artifacts.streaming import Body, Hash, KeyedLocks, PartWriter, taken_over
from stoker.store.db import Session
from stoker.store.tables.artifacts import Upload, UploadFile, UploadPart, UploadStatus

# A part holds the bytes of one client and never a mixture.
_locks = KeyedLocks()

Finish = Callable[[UploadFile, "PartReception"], None]
"""Updates the file's row when its last part is stored."""


@dataclass(frozen=True, kw_only=True)
class PartTarget:
    """The file that a request writes into."""

    account_id: str
    artifact_id: str
    upload_id: str
    path: str
    blob_key: str
    part_size: int
    session_limit: int
    """Maximum bytes of all files of the session together."""
    limit: int
    """Maximum bytes of this file."""
    declared_bytes: int
    """Bytes reserved for the session, whether or not they arrive. 0 means that none were
    declared.
    """


class PartReception:
    """Receives one part: copies it, then stores it. An unstored part leaves nothing behind."""

    def __init__(
        self,
        platform: Platform,
        place: PartTarget,
        number: int,
        recorded: UploadPart | None,
        message: Hash | None,
    ) -> None:
        self.number = number
        self._platform = platform
        self._place = place
        # An acknowledged part stays unchanged until all its new bytes have arrived.
        earlier = None if recorded is None else recorded.sha256
        self._part = platform.blobs.part(place.blob_key, number, self.offset, earlier)
        self._writer = PartWriter(self._part, message)
        self._is_kept = False

    @classmethod
    @contextlib.asynccontextmanager
    async def open(
        cls, platform: Platform, place: PartTarget, number: int, message: Hash | None = None
    ) -> AsyncGenerator["PartReception"]:
        """Waits until no other request writes this part, then yields its reception. `message` is
        also fed all bytes of the part.
        """
        platform.quotas.check_disk(place.part_size)
        async with _locks.hold(place.blob_key, number):
            async with platform.database.reading() as session:
                recorded = await repository.part(session, place.upload_id, place.path, number)
            part = cls(platform, place, number, recorded, message)
            try:
                yield part
            finally:
                await part._close()

    @property
    def offset(self) -> int:
        return layout.offset(self.number, self._place.part_size)

    @property
    def size(self) -> int:
        return self._writer.size

    @property
    def end(self) -> int:
        """Offset in the file after the part's received bytes."""
        return self.offset + self.size

    @property
    def sha256(self) -> bytes:
        return self._writer.sha256

    async def copy(self, body: Body, limit: int) -> None:
        """Copies at most `limit` bytes of the body."""
        await self._writer.copy(body, limit)

    async def store(self, finish: Finish | None = None) -> None:
        """Makes the part durable and records it. Calls `finish` with the file in the same
        transaction.

        Raises `ConflictError` if the session was closed or the file replaced in the meantime.
        """
        if self.size:
            await self._writer.sync()
            await self._put_in_place()
        await self._record(finish)
        self._is_kept = True

    async def _close(self) -> None:
        await self._writer.close(is_kept=self._is_kept)

    async def _put_in_place(self) -> None:
        if not self._part.must_give_way:
            return
        place = self._place
        async with self._platform.database.transaction() as session:
            _, file = await open_file(session, place)
            # From here until its new row is stored, the part is neither the old one nor the new
            # one.
            await repository.drop_parts(
                session, place.upload_id, place.path, self.number, self.number
            )
            file.sha256 = None
        await self._part.settle()

    async def _record(self, finish: Finish | None) -> None:
        place = self._place
        async with self._platform.database.transaction() as session:
            _, file = await open_file(session, place)
            if self.size:
                await self._check_size(session, file)
                await repository.put_part(
                    session,
                    UploadPart(
                        upload_id=place.upload_id,
                        path=place.path,
                        number=self.number,
                        size=self.size,
                        sha256=self.sha256,
                    ),
                )
                await _check_limit(session, place)
                if file.size is None:
                    # Otherwise the bytes were reserved when the size was declared.
                    await reserve(session, self._platform, place, self.size)
            if self.size < place.part_size:
                file.end_awaited = False
            if finish is not None:
                finish(file, self)

    async def _check_size(self, session: Session, file: UploadFile) -> None:
        place, number = self._place, self.number
        if file.size is not None:
            if self.size != min(place.part_size, file.size - self.offset):
                raise _misfit(f"It has {self.size} bytes, and the file has {file.size}")
            return
        if self.size < place.part_size and await repository.part_after(
            session, place.upload_id, place.path, number
        ):
            raise _misfit(f"Part {number} is not the last one but has only {self.size} bytes")
        if await repository.short_part_before(
            session, place.upload_id, place.path, number, place.part_size
        ):
            raise _misfit("An earlier, shorter part already ended the file")


async def open_file(session: Session, place: PartTarget) -> tuple[Upload, UploadFile]:
    """Returns the session and the file that a request writes into. Raises an error if they accept
    no more bytes.
    """
    upload = await repository.upload(
        session, place.account_id, place.artifact_id, place.upload_id, lock=True
    )
    if upload is None:
        # The upload was deleted with its artifact after this request was admitted.
        raise service.upload_closed(UploadStatus.ABANDONED)
    service.refuse_closed(upload)
    file = await repository.file(session, place.upload_id, place.path)
    if file is None or file.blob_key != place.blob_key:
        raise taken_over()
    return upload, file


async def reserve(session: Session, platform: Platform, place: PartTarget, added: int) -> None:
    """Reserves `added` more bytes for the session's files. Bytes that the session declared are
    already reserved.

    Raises `PayloadTooLargeError` if the account may not store them.
    """
    if added and await repository.session_bytes(session, place.upload_id) > place.declared_bytes:
        await platform.quotas.took(session, place.account_id, Quota.STORAGE_BYTES, added)


def too_large(limit: int) -> PayloadTooLargeError:
    return PayloadTooLargeError(
        f"The artifact would be larger than {limit} bytes, the limit of this server."
    )


def size_mismatch(told: int, known: int) -> ConflictError:
    return ConflictError(
        f"The file has {known} bytes according to earlier requests, but this "
        f"request says {told}. To replace the file, send it whole and without "
        "Content-Range.",
        code="size_mismatch",
    )


async def _check_limit(session: Session, place: PartTarget) -> None:
    if await repository.received_bytes(session, place.upload_id) > place.session_limit:
        raise too_large(place.session_limit)


def _misfit(what: str) -> ConflictError:
    return ConflictError(
        f"The part does not fit its file: {what}. Every part except the last must "
        "have the session's part_size.",
        code="size_mismatch",
    )
