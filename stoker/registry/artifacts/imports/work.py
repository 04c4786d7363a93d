"""Fetches an import's files into its upload session in parallel parts, and completes the session.

Durable bytes are not fetched again: a resumed job continues from them.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass

from stoker.base.errors import (
    CapacityError,
    InternalError,
    InvalidRequestError,
    StokerError,
)
from stoker.base.fairness import CURRENT_CALLER, Party
from stoker.platform.jobs.kind import Outcome
from stoker.platform.web.outage import lost_store_reported
from stoker.registry.artifacts import completion, receiving
from stoker.registry.artifacts import repository as uploads
from stoker.registry.artifacts import service as artifacts
from stoker.registry.artifacts.imports import repository
from stoker.registry.artifacts.imports.context import ImportContext
from stoker.registry.artifacts.imports.digesting import Digest, Reading
from stoker.registry.artifacts.message import Address, ContentRange, UploadBody
from stoker.registry.hub.client import HubFile
from stoker.runtime.interface import OnProgress
from stoker.store.blobs import PartOfFile
from stoker.store.db import Session
from stoker.store.tables.artifacts import ArtifactStatus, Upload, UploadFile, UploadStatus
from stoker.store.tables.imports import Import

log = logging.getLogger(__name__)

AT_ONCE = 8
"""Maximum number of parts fetched at the same time."""
TRIES = 5
"""Number of attempts per part before the whole job is postponed."""
FIRST_PAUSE_S = 1.0


@dataclass(frozen=True)
class _Piece:
    file: HubFile
    number: int
    start: int
    end: int

    @property
    def length(self) -> int:
        return self.end - self.start


class ImportJob:
    """The `JobKind` of imports."""

    table = Import

    def __init__(
        self,
        context: ImportContext,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._context = context
        self._sleep = sleep

    async def perform(self, row: Import, on_progress: OnProgress) -> None:
        CURRENT_CALLER.set(Party(row.account_id))
        await _Fetching(self._context, row, on_progress, self._sleep).run()
        context = self._context
        artifact = await completion.complete(
            context, row.account_id, row.artifact_id, row.upload_id, is_import=True
        )
        if artifact.status == ArtifactStatus.FAILED:
            # The artifact reports this failure too.
            raise InvalidRequestError(artifact.failure_message, code=artifact.failure_code)

    def outcome(self, row: Import, made: None) -> Outcome:
        return Outcome({})

    async def keep(self, session: Session, row: Import, made: None) -> None:
        """Does nothing: the artifact already owns the result."""

    async def ended(self, session: Session, row: Import, error: StokerError | None) -> None:
        await repository.erase_token(session, row.id)
        ids = row.account_id, row.artifact_id, row.upload_id
        upload = await uploads.upload(session, *ids, lock=True) if error else None
        # A session that was completed or closed elsewhere stays unchanged.
        if upload is not None and upload.status == UploadStatus.OPEN:
            await artifacts.abandon(session, self._context.blobs, *ids)

    async def discard(self, made: None) -> None:
        """Does nothing: the upload session owns the received bytes."""


class _Fetching:
    """One run of an import's job."""

    def __init__(
        self,
        context: ImportContext,
        row: Import,
        on_progress: OnProgress,
        sleep: Callable[[float], Awaitable[None]],
    ) -> None:
        self._context = context
        self._row = row
        self._on_progress = on_progress
        self._sleep = sleep
        self._received = 0
        """Number of durable bytes."""
        self._on_their_way: dict[_Piece, int] = {}
        """Received bytes of each piece that is not durable yet."""
        self._left: dict[str, int] = {}
        """Number of missing pieces per file path."""
        self._digests: dict[str, Digest] = {}
        self._token = _token(context, row)

    async def run(self) -> None:
        pieces, whole = await self._missing()
        for file in whole:
            await self._check(file)
        workers = [asyncio.create_task(self._work(pieces)) for _ in range(AT_ONCE)]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)

    async def _missing(self) -> tuple[deque[_Piece], list[HubFile]]:
        """Returns the pieces to fetch, and the complete files that were not checked yet."""
        row = self._row
        async with self._context.database.reading() as session:
            upload = await self._upload(session)
            if upload.status in (UploadStatus.READY, UploadStatus.FAILED):
                # The session was completed before its server stopped.
                return deque(), []
            received_parts = {
                (part.path, part.number) for part in await uploads.parts(session, row.upload_id)
            }
            known = await uploads.files(session, row.upload_id)
        checked = {file.path for file in known if file.sha256 is not None}
        missing: deque[_Piece] = deque()
        whole: list[HubFile] = []
        for file in (HubFile(**fields) for fields in row.files):
            if file.path in checked:
                self._received += file.size
                continue
            digest = self._digests[file.path] = Digest(file)
            lacking: list[_Piece] = []
            for piece in _pieces(file, upload.part_size):
                if (file.path, piece.number) in received_parts:
                    self._received += piece.length
                    digest.add(piece.start, piece.end)
                else:
                    lacking.append(piece)
            self._left[file.path] = len(lacking)
            missing.extend(lacking)
            if not lacking:
                whole.append(file)
        return missing, whole

    async def _work(self, pieces: deque[_Piece]) -> None:
        while pieces:
            piece = pieces.popleft()
            await self._fetch(piece)
            path = piece.file.path
            self._digests[path].add(piece.start, piece.end)
            self._left[path] -= 1
            if self._left[path]:
                await self._digests[path].follow(self._reading(await self._received_file(path)))
            else:
                await self._check(piece.file)

    async def _fetch(self, piece: _Piece) -> None:
        """Receives a piece. Retries if the hub breaks off."""
        for attempt in range(TRIES):
            try:
                await self._receive(piece)
            except CapacityError as error:
                if error.code != "hub_unavailable" or attempt + 1 == TRIES:
                    raise
                log.info("download of a part is retried", extra={"why": error.message})
                await self._sleep(FIRST_PAUSE_S * 2**attempt)
            else:
                self._received += piece.length
                return
            finally:
                self._on_their_way.pop(piece, None)

    async def _receive(self, piece: _Piece) -> None:
        row, file = self._row, piece.file
        address = Address(
            account_id=row.account_id,
            artifact_id=row.artifact_id,
            upload_id=row.upload_id,
            path=file.path,
            is_import=True,
        )
        async with self._context.hub.content(
            row.repo_id, row.commit, file, start=piece.start, end=piece.end, token=self._token
        ) as chunks:
            content_range = (
                ContentRange(piece.start, piece.end, file.size) if piece.length else None
            )
            message = UploadBody(
                chunks=self._told(piece, chunks),
                length=piece.length,
                range=content_range,
                digest=None,
            )
            if piece.length:
                await receiving.put_part(self._context, address, piece.number, message)
            else:
                await receiving.put_file(self._context, address, message)

    async def _told(self, piece: _Piece, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        self._on_their_way[piece] = 0
        async for chunk in chunks:
            self._on_their_way[piece] += len(chunk)
            received = self._received + sum(self._on_their_way.values())
            self._on_progress(received / self._row.bytes_total)
            yield chunk

    async def _check(self, file: HubFile) -> None:
        """Compares the received bytes with the digest in the hub's list, and records the file as
        checked.
        """
        received_file = await self._received_file(file.path)
        sha256 = await self._digests[file.path].sha256(self._reading(received_file))
        async with self._context.database.transaction() as session:
            await uploads.note_digest(session, received_file, sha256)

    async def _received_file(self, path: str) -> UploadFile:
        """Returns the row of a received file. Raises `ConflictError` if the session was closed in
        the meantime.
        """
        async with self._context.database.reading() as session:
            artifacts.refuse_closed(await self._upload(session))
            return await session.get_one(UploadFile, (self._row.upload_id, path))

    async def _upload(self, session: Session) -> Upload:
        row = self._row
        _, upload = await artifacts.get_upload(
            session, row.account_id, row.artifact_id, row.upload_id
        )
        return upload

    def _reading(self, file: UploadFile) -> Reading:
        async def read(start: int, end: int, take: Callable[[bytes], None]) -> None:
            async with self._context.database.reading() as session:
                rows = await uploads.parts(session, file.upload_id, file.path)
            parts = [PartOfFile(row.number, row.size, row.sha256) for row in rows]
            with lost_store_reported():
                await self._context.blobs.follow(file.blob_key, parts, start, end, take)

        return read


def _token(context: ImportContext, row: Import) -> str | None:
    """Returns the caller's hub token, or None if the import has none."""
    if row.token is None:
        return None
    token = context.secret.unseal(row.token)
    if token is None:
        raise InternalError(
            "The hub token was encrypted with another server's secret. Start the import again."
        )
    return token.decode()


def _pieces(file: HubFile, part_size: int) -> Iterator[_Piece]:
    """Yields a file's parts. An empty file has a single empty piece."""
    starts = range(0, file.size, part_size) if file.size else (0,)
    for number, start in enumerate(starts, 1):
        yield _Piece(file, number, start, min(start + part_size, file.size))
