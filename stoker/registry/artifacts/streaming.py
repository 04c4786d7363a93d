"""Bytes on their way from a client to the disk: flat in memory, ended when their session is."""

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncGenerator, AsyncIterator, Hashable
from typing import Protocol
from weakref import WeakValueDictionary

from starlette.requests import ClientDisconnect

from stoker.base.errors import ConflictError, InvalidRequestError, StokerError
from stoker.store.blobs import Part
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


class Transfer:
    """A request that is writing into an upload session."""

    def __init__(self, file: Hashable | None = None) -> None:
        self.file = file
        self.finished = asyncio.Event()
        self._reason: StokerError | None = None
        self._waiting: asyncio.Timeout | None = None

    def end(self, reason: StokerError) -> None:
        """Let the transfer fail with `reason`: now if it waits for its client, else before that."""
        self._reason = self._reason or reason
        if self._waiting is not None and not self._waiting.expired():
            self._waiting.reschedule(asyncio.get_running_loop().time())

    async def next(self, chunks: AsyncIterator[bytes]) -> bytes:
        """The client's next bytes; empty at the end of the body.

        Raises `InvalidRequestError` where the client left, or fell silent for so long that its
        connection was ended, and whatever reason `end` was given.
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
    """The transfers under way in this process, by upload session."""

    def __init__(self) -> None:
        self._active: dict[str, list[Transfer]] = {}

    @contextlib.asynccontextmanager
    async def enter(self, upload_id: str, file: Hashable | None = None) -> AsyncGenerator[Transfer]:
        """A new transfer.

        One of a whole file, where one is named, ends an earlier one of the same file: that one's
        client has most likely lost its connection, which only it knows so far.
        """
        active = self._active.setdefault(upload_id, [])
        earlier = [other for other in active if file is not None and other.file == file]
        transfer = Transfer(file)
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
        """The sessions that something is written into."""
        return [*self._active]

    async def end(self, upload_id: str, reason: StokerError) -> None:
        """End all transfers into a session; return when none writes any more."""
        await _end([*self._active.get(upload_id, ())], reason)


async def _end(transfers: list[Transfer], reason: StokerError) -> None:
    for transfer in transfers:
        transfer.end(reason)
    for transfer in transfers:
        await transfer.finished.wait()


class KeyedLocks:
    """A lock for each key that somebody holds or waits for."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[tuple[str | int, ...], asyncio.Lock]
        self._locks = WeakValueDictionary()

    @contextlib.asynccontextmanager
    async def hold(self, *key: str | int) -> AsyncGenerator[None]:
        lock = self._locks.setdefault(key, asyncio.Lock())
        async with lock:
            yield


class Body:
    """A request's body in blocks, never more than `limit` bytes of it.

    Raises `excess` as soon as the client has sent more.
    """

    def __init__(
        self, chunks: AsyncIterator[bytes], transfer: Transfer, limit: int, excess: StokerError
    ) -> None:
        self._chunks = chunks
        self._transfer = transfer
        self._limit = limit
        self._excess = excess
        self._buffer = bytearray()
        self._received = 0
        self._ended = False

    async def block(self, limit: int) -> bytearray:
        """The next block, of at most `limit` bytes; empty at the end."""
        wanted = min(limit, BLOCK_BYTES)
        while len(self._buffer) < wanted and not self._ended:
            await self._more()
        if len(self._buffer) <= wanted:
            block, self._buffer = self._buffer, bytearray()
            return block
        block = self._buffer[:wanted]
        del self._buffer[:wanted]
        return block

    async def end(self) -> None:
        """Wait for the end of the body, which nothing may stand before."""
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

    def __init__(self, part: Part, message: Hash | None) -> None:
        self.size = 0
        self._part = part
        self._hash: Hash = hashlib.sha256()
        self._message = message
        self._pending: set[asyncio.Future[None]] = set()

    @property
    def sha256(self) -> bytes:
        return self._hash.digest()

    async def copy(self, body: Body, limit: int) -> None:
        """Write up to `limit` bytes of the body: one block while the next one arrives."""
        while block := await body.block(limit - self.size):
            await self._settle()
            self.size += len(block)
            self._start(block)
        await self._settle()

    async def sync(self) -> None:
        """Return when the part is durable."""
        await self._part.sync(self.sha256)

    async def close(self, *, is_kept: bool) -> None:
        # Closed under a thread that still writes, the descriptor could become another file's.
        with contextlib.suppress(Exception):
            await self._settle()
        await self._part.close(is_kept=is_kept)

    def _start(self, block: bytearray) -> None:
        self._pending = {asyncio.ensure_future(on_disk(self._write, block))}
        if self._message is not None:
            # Beside each other: hashing is what takes longest, and lets go of the interpreter.
            update = on_disk(self._message.update, block)
            self._pending.add(asyncio.ensure_future(update))

    def _write(self, block: bytearray) -> None:
        self._hash.update(block)
        self._part.write(block)

    async def _settle(self) -> None:
        if not self._pending:
            return
        # Unlike `gather`, this leaves the threads' work alone when the request is cancelled.
        await asyncio.wait(self._pending)
        done, self._pending = self._pending, set()
        for future in done:
            future.result()


transfers = Transfers()
"""All of this process."""
