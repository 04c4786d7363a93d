"""Streams bytes from a client to the disk with constant memory. A transfer ends with its
session.
"""

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncGenerator, AsyncIterator, Hashable
from typing import Protocol
from weakref import WeakValueDictionary

from starlette.requests import ClientDisconnect

from stoker.base.errors import ConflictError, InvalidRequestError, StokerError
from stoker.store.blobs import BlobPart
from stoker.store.blobs.threads import on_disk

BLOCK_BYTES = 1024 * 1024


class Hash(Protocol):
    def update(self, data: bytes | bytearray, /) -> None: ...
    def digest(self) -> bytes: ...


def taken_over() -> ConflictError:
    return ConflictError(
        ("Another PUT of the same file replaced this one. HEAD returns the bytes received."),
        code="transfer_taken_over",
    )


class UploadTransfer:
    """Request that writes into an upload session."""

    def __init__(self, file: Hashable | None = None) -> None:
        self.file = file
        self.finished = asyncio.Event()
        self._reason: StokerError | None = None
        self._waiting: asyncio.Timeout | None = None

    def end(self, reason: StokerError) -> None:
        """Fails the transfer with `reason`: at once if it waits for its client, otherwise before
        its next wait.
        """
        self._reason = self._reason or reason
        if self._waiting is not None and not self._waiting.expired():
            self._waiting.reschedule(asyncio.get_running_loop().time())

    async def next(self, chunks: AsyncIterator[bytes]) -> bytes:
        """Returns the client's next bytes, or empty bytes at the end of the body.

        Raises `InvalidRequestError` if the client disconnected, or was silent until its connection
        was ended. Raises the reason passed to `end`.
        """
        if self._reason is not None:
            raise self._reason
        try:
            async with asyncio.timeout(None) as self._waiting:
                return await anext(chunks, b"")
        except TimeoutError as error:
            raise self._reason or error from None
        except ClientDisconnect:
            raise InvalidRequestError("The body ended early.") from None
        finally:
            self._waiting = None


class Transfers:
    """Active transfers of this process, by upload session."""

    def __init__(self) -> None:
        self._active: dict[str, list[UploadTransfer]] = {}

    @contextlib.asynccontextmanager
    async def enter(
        self, upload_id: str, file: Hashable | None = None
    ) -> AsyncGenerator[UploadTransfer]:
        """Registers a new transfer and yields it.

        A transfer with a `file` ends an earlier transfer of the same file. The earlier client has
        probably lost its connection, which the server cannot know yet.
        """
        active = self._active.setdefault(upload_id, [])
        earlier = [other for other in active if file is not None and other.file == file]
        transfer = UploadTransfer(file)
        active.append(transfer)
        try:
            await _end(earlier, taken_over())
            yield transfer
        finally:
            transfer.finished.set()
            active.remove(transfer)
            if not active:
                self._active.pop(upload_id, None)

    def uploads(self) -> list[str]:
        """Returns the ids of the sessions with active transfers."""
        return [*self._active]

    async def end(self, upload_id: str, reason: StokerError) -> None:
        """Ends all transfers into a session. Returns when none of them writes any more."""
        await _end([*self._active.get(upload_id, ())], reason)


async def _end(transfers: list[UploadTransfer], reason: StokerError) -> None:
    for transfer in transfers:
        transfer.end(reason)
    for transfer in transfers:
        await transfer.finished.wait()


class KeyedLocks:
    """Locks by key. A lock exists while it is held or waited for."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[tuple[str | int, ...], asyncio.Lock]
        self._locks = WeakValueDictionary()

    @contextlib.asynccontextmanager
    async def hold(self, *key: str | int) -> AsyncGenerator[None]:
        lock = self._locks.setdefault(key, asyncio.Lock())
        async with lock:
            yield


class Body:
    """Reads a request's body in blocks, at most `limit` bytes in total.

    Raises `excess` as soon as the client has sent more.
    """

    def __init__(
        self,
        chunks: AsyncIterator[bytes],
        transfer: UploadTransfer,
        limit: int,
        excess: StokerError,
    ) -> None:
        self._chunks = chunks
        self._transfer = transfer
        self._limit = limit
        self._excess = excess
        self._buffer = bytearray()
        self._received = 0
        self._ended = False

    async def block(self, limit: int) -> bytearray:
        """Returns the next block of at most `limit` bytes. Empty at the end."""
        size = min(limit, BLOCK_BYTES)
        while len(self._buffer) < size and not self._ended:
            await self._more()
        if len(self._buffer) <= size:
            block, self._buffer = self._buffer, bytearray()
            return block
        block = self._buffer[:size]
        del self._buffer[:size]
        return block

    async def end(self) -> None:
        """Waits for the end of the body. Raises `excess` if more bytes than `limit` arrive before
        it.
        """
        while not self._ended:
            await self._more()

    async def _more(self) -> None:
        chunk = await self._transfer.next(self._chunks)
        self._ended = not chunk
        self._received += len(chunk)
        if self._received > self._limit:
            raise self._excess
        self._buffer += chunk


class PartWriter:
    """Hashes and writes one part in a worker thread, a block at a time."""

    def __init__(self, part: BlobPart, message: Hash | None) -> None:
        self.size = 0
        self._part = part
        self._hash: Hash = hashlib.sha256()
        self._message = message
        self._pending: set[asyncio.Future[None]] = set()

    @property
    def sha256(self) -> bytes:
        return self._hash.digest()

    async def copy(self, body: Body, limit: int) -> None:
        """Writes up to `limit` bytes of the body. Writes one block while the next one arrives."""
        while block := await body.block(limit - self.size):
            await self._settle()
            self.size += len(block)
            self._start(block)
        await self._settle()

    async def sync(self) -> None:
        """Returns when the part is durable."""
        await self._part.sync(self.sha256)

    async def close(self, *, is_kept: bool) -> None:
        # If the descriptor were closed while a thread still writes, it could become another file's.
        with contextlib.suppress(Exception):
            await self._settle()
        await self._part.close(is_kept=is_kept)

    def _start(self, block: bytearray) -> None:
        self._pending = {asyncio.ensure_future(on_disk(self._write, block))}
        if self._message is not None:
            # Runs in parallel: hashing takes longest and releases the interpreter lock.
            update = on_disk(self._message.update, block)
            self._pending.add(asyncio.ensure_future(update))

    def _write(self, block: bytearray) -> None:
        self._hash.update(block)
        self._part.write(block)

    async def _settle(self) -> None:
        if not self._pending:
            return
        # Unlike `gather`, this does not cancel the threads' work when the request is cancelled.
        await asyncio.wait(self._pending)
        done, self._pending = self._pending, set()
        for future in done:
            future.result()


transfers = Transfers()
"""All transfers of this process."""
