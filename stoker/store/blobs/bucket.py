"""Blobs in a bucket that several servers share: S3 or another store that obstore supports.

Each part of an uploaded file is a separate object with the digest of its bytes in its name. Writing
the same part twice gives the same object. A part with other bytes is another object, and the row
records which of them counts. So another server can continue an upload, late requests do no harm,
and nothing is copied at the end. A list next to the parts records the parts of each file. It is
written when the upload is completed.
"""

import asyncio
import contextlib
import hashlib
import logging
import os
import secrets
import tempfile
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import IO, Any

import msgspec
import obstore
from obstore.exceptions import BaseError

from stoker.store.blobs.bucket_client import bucket_store
from stoker.store.blobs.bucket_writing import BucketPart, BucketWriter
from stoker.store.blobs.interface import (
    BlobLostError,
    BlobPart,
    Blobs,
    BlobWriter,
    Files,
    ListedBlob,
    PartOfFile,
    StoreUnavailableError,
    Take,
    WholeFile,
    list_key,
    part_key,
)

log = logging.getLogger(__name__)

BLOCK_BYTES = 16 << 20
"""Maximum bytes per request. S3's own limits and each request's timeout allow this size."""
_STREAM_BYTES = 4 << 20
_AT_ONCE = 8
"""Number of parts that are fetched concurrently for one model."""
_SLOWEST = 256 << 10
"""Minimum transfer rate in bytes per second. Slower requests are aborted."""
_LISTS_KEPT, _LIST_KEPT_S = 64, 10.0
"""Number of cached lists and seconds for which each is cached. An upload with an interrupted
completion is completed again, possibly by another server. Loads always read the current list.
"""
_TRIES = 3
"""Number of attempts for a part that arrives with other bytes than were written."""
_CLOCK = "clock"


class _PartSaid(msgspec.Struct, frozen=True, array_like=True):
    size: int
    sha256: str


class _Said(msgspec.Struct, frozen=True):
    """Lists of the parts of an upload's files, by the last segment of their keys."""

    files: dict[str, list[_PartSaid]]


class Bucket(Blobs):
    is_shared = True

    def __init__(self, url: str, spool: Path, *, timeout_s: float) -> None:
        """
        Args:
            url: `s3://bucket/prefix`, `gs://…` or `az://…`; the credentials come from the
                environment.
            spool: a folder of this machine for incoming parts.
            timeout_s: seconds for which failed requests are retried.
        """
        spool.mkdir(parents=True, exist_ok=True)
        self._spool = spool
        self._timeout_s = timeout_s
        self._store = bucket_store(url, timeout_s)
        self._lists: OrderedDict[str, tuple[float, _Said]] = OrderedDict()
        self._clearing: set[asyncio.Task[None]] = set()

    # --- blobs ---

    async def put(self, key: str, content: bytes, content_type: str) -> None:
        attributes = {"Content-Type": content_type} if content_type else None
        async with self._asked("write", len(content)):
            await obstore.put_async(
                self._store, key, content, attributes=attributes, chunk_size=BLOCK_BYTES
            )

    def writer(self) -> BlobWriter:
        return BucketWriter(self.spooled(), self.put_file)

    async def put_file(self, key: str, file: IO[bytes], content_type: str = "") -> None:
        """Writes a blob with the content of a file."""
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        attributes = {"Content-Type": content_type} if content_type else None
        async with self._asked("write", size):
            await obstore.put_async(
                self._store,
                key,
                file,
                attributes=attributes,
                chunk_size=BLOCK_BYTES,
                max_concurrency=4,
            )

    async def size(self, key: str) -> int:
        async with self._asked("look at"):
            return (await obstore.head_async(self._store, key))["size"]

    async def stream(self, key: str, start: int, end: int) -> AsyncGenerator[bytes]:
        for begin in range(start, end, _STREAM_BYTES):
            yield await self._range(key, begin, min(begin + _STREAM_BYTES, end))

    def discard(self, key: str) -> None:
        self._soon(self.delete([key]))

    async def remove(self, key: str) -> None:
        self.discard(key)

    async def link(self, key: str, expires_s: int) -> str | None:
        async with self._asked("sign a link"):
            return await obstore.sign_async(
                self._store, "GET", key, timedelta(seconds=max(1, expires_s))
            )

    # --- uploaded files ---

    def part(self, key: str, number: int, offset: int, earlier: bytes | None) -> BlobPart:
        return BucketPart(self.spooled(), partial(self.put_part, key, number))

    async def complete(self, folder: str, files: Sequence[WholeFile]) -> None:
        part_list = _Said(
            {
                _name(file.key): [_PartSaid(part.size, part.sha256.hex()) for part in file.parts]
                for file in files
            }
        )
        content = await asyncio.to_thread(msgspec.json.encode, part_list)
        await self.put(list_key(folder), content, "application/json")
        self._lists.pop(folder, None)

    def reopen(self, folder: str) -> None:
        self._lists.pop(folder, None)

    def tidy(self, folder: str, files: Sequence[WholeFile]) -> None:
        self._soon(self._tidy(folder, files))

    async def _tidy(self, folder: str, files: Sequence[WholeFile]) -> None:
        known = {list_key(folder)}
        for file in files:
            known |= {part_key(file.key, item.number, item.sha256) for item in file.parts}
        async for some in self.listed(folder):
            await self.delete([item.key for item in some if item.key not in known])

    async def follow(
        self, key: str, parts: Sequence[PartOfFile], start: int, end: int, take: Take
    ) -> None:
        begin = 0
        for part in parts:
            first, last = max(start, begin) - begin, min(end, begin + part.size) - begin
            if first < last:
                async for block in self.stream(
                    part_key(key, part.number, part.sha256), first, last
                ):
                    await asyncio.to_thread(take, block)
            begin += part.size

    async def read(self, key: str, size: int, offset: int, length: int) -> bytes:
        end = min(size, offset + length)
        blocks: list[bytes] = []
        for name, begin, part in await self._parts(key):
            first, last = max(offset, begin) - begin, min(end, begin + part.size) - begin
            if first < last:
                blocks += [block async for block in self.stream(name, first, last)]
        return b"".join(blocks)

    def files(self, files: Files) -> "_Bridge":
        return _Bridge(self, files, asyncio.get_running_loop())

    async def remove_file(self, key: str) -> None:
        self._soon(self.delete_prefix(key))

    async def put_part(self, key: str, number: int, sha256: bytes, file: IO[bytes]) -> None:
        await self.put_file(part_key(key, number, sha256), file)

    def spooled(self) -> IO[bytes]:
        """Returns a file without a name. It is deleted when it is closed."""
        return tempfile.TemporaryFile(dir=self._spool)

    # --- on this machine ---

    def local_path(self, key: str) -> Path | None:
        return None

    async def place(self, files: Files, folder: Path) -> None:
        try:
            await self._place(files, folder)
        except ExceptionGroup as several:
            raise several.exceptions[0] from several

    async def _place(self, files: Files, folder: Path) -> None:
        places = asyncio.Semaphore(_AT_ONCE)
        of_uploads = {key.rpartition("/")[0] for key, _ in files.values()}
        lists = {
            upload_folder: await self._read_list(upload_folder) for upload_folder in of_uploads
        }
        async with asyncio.TaskGroup() as group:
            for path, (key, size) in files.items():
                target = folder / path
                parts = await self._parts(key, lists)
                if sum(part.size for _, _, part in parts) != size:
                    raise StoreUnavailableError(
                        f"the total size of the parts of {key} differs from its database row"
                    )
                await asyncio.to_thread(_allot, target, size)
                for name, begin, part in parts:
                    await places.acquire()
                    fetching = group.create_task(self._fetch(name, part, target, begin))
                    fetching.add_done_callback(lambda _: places.release())

    async def _fetch(self, key: str, part: _PartSaid, target: Path, offset: int) -> None:
        """Copies a part into its place and compares it with the digest of the upload."""
        for _ in range(_TRIES):
            digest = hashlib.sha256()
            descriptor = await asyncio.to_thread(os.open, target, os.O_WRONLY)
            try:
                at = offset
                async for block in self.stream(key, 0, part.size):
                    await asyncio.to_thread(_write, descriptor, block, at, digest.update)
                    at += len(block)
                # A folder that exists after a power cut is complete.
                await asyncio.to_thread(os.fsync, descriptor)
            finally:
                os.close(descriptor)
            if digest.hexdigest() == part.sha256:
                return
            log.warning("part read back differs from what was written", extra={"key": key})
        raise StoreUnavailableError(f"{key} differs from the content that was written")

    # --- maintenance ---

    async def listed(self, prefix: str) -> AsyncIterator[Sequence[ListedBlob]]:
        # The other overloads refer to a library that is not installed.
        listing = obstore.list(self._store, prefix)  # pyright: ignore[reportUnknownMemberType]
        while True:
            async with self._asked("list"):
                some = await anext(listing, None)
            if some is None:
                return
            yield [ListedBlob(entry["path"], entry["last_modified"]) for entry in some]

    async def delete(self, keys: Sequence[str]) -> None:
        if keys:
            async with self._asked("delete"):
                with contextlib.suppress(FileNotFoundError):
                    await obstore.delete_async(self._store, keys)

    async def delete_prefix(self, prefix: str) -> int:
        keys = await self.keys(prefix)
        await self.delete(keys)
        return len(keys)

    async def now(self) -> datetime:
        key = f"{_CLOCK}/{secrets.token_hex(8)}"
        await self.put(key, b"", "")
        try:
            async with self._asked("look at"):
                return (await obstore.head_async(self._store, key))["last_modified"]
        finally:
            await self.delete([key])

    # --- requests to the bucket ---

    async def _range(self, key: str, start: int, end: int) -> bytes:
        async with self._asked("read", end - start):
            return bytes(await obstore.get_range_async(self._store, key, start=start, end=end))

    async def _parts(
        self, key: str, lists: Mapping[str, _Said] | None = None
    ) -> Sequence[tuple[str, int, _PartSaid]]:
        """Returns for each part of a complete file its key, its offset in the file, and its size
        and digest.
        """
        folder = key.rpartition("/")[0]
        part_list = await self._list(folder) if lists is None else lists[folder]
        parts = part_list.files.get(_name(key))
        if parts is None:
            raise BlobLostError(key)
        return list(_placed(key, parts))

    async def _list(self, folder: str) -> _Said:
        now = asyncio.get_running_loop().time()
        read_at, part_list = self._lists.get(folder, (0.0, None))
        if part_list is None or now - read_at > _LIST_KEPT_S:
            part_list = await self._read_list(folder)
            self._lists[folder] = (now, part_list)
            while len(self._lists) > _LISTS_KEPT:
                self._lists.popitem(last=False)
        return part_list

    async def _read_list(self, folder: str) -> _Said:
        content = await self.get(list_key(folder))
        return await asyncio.to_thread(msgspec.json.decode, content, type=_Said)

    @contextlib.asynccontextmanager
    async def _asked(self, what: str, size: int = 0) -> AsyncGenerator[None]:
        """Raises `StoreUnavailableError` if the request fails or times out, and `BlobLostError` if
        the blob does not exist.
        """
        try:
            # The library itself retries for `timeout_s`. This timeout ends responses that never
            # end.
            async with asyncio.timeout(2 * self._timeout_s + size / _SLOWEST):
                yield
        except FileNotFoundError as error:
            raise BlobLostError("the bucket has no such blob") from error
        except (BaseError, TimeoutError) as error:
            # After the first line the message contains a dump of the library's internals. Clients
            # must not see addresses.
            why = str(error).partition("\n")[0] or type(error).__name__
            log.warning("bucket request failed", extra={"to": what, "why": why})
            raise StoreUnavailableError(f"cannot {what}: {why}") from error

    def _soon(self, work: Coroutine[Any, Any, Any]) -> None:
        """Starts a deletion in the background. Objects that cannot be deleted are later found as
        garbage.
        """

        async def quietly() -> None:
            with contextlib.suppress(StoreUnavailableError, BlobLostError):
                await work

        task = asyncio.get_running_loop().create_task(quietly())
        self._clearing.add(task)
        task.add_done_callback(self._clearing.discard)


class _Bridge:
    """Reads files of a bucket from a thread."""

    def __init__(self, bucket: Bucket, files: Files, loop: asyncio.AbstractEventLoop) -> None:
        self._bucket = bucket
        self._files = files
        self._loop = loop

    def sizes(self) -> Mapping[str, int]:
        return {path: size for path, (_, size) in self._files.items()}

    def read(self, path: str, offset: int, length: int) -> bytes:
        key, size = self._files[path]
        reading = self._bucket.read(key, size, offset, length)
        return asyncio.run_coroutine_threadsafe(reading, self._loop).result()


def _name(key: str) -> str:
    return key.rpartition("/")[2]


def _placed(key: str, said: Sequence[_PartSaid]) -> Iterator[tuple[str, int, _PartSaid]]:
    begin = 0
    for number, part in enumerate(said, 1):
        yield f"{key}/{number}-{part.sha256}", begin, part
        begin += part.size


def _allot(target: Path, size: int) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("xb") as file:
        file.truncate(size)


def _write(descriptor: int, block: bytes, offset: int, take: Take) -> None:
    view = memoryview(block)
    while view:
        written = os.pwrite(descriptor, view, offset)
        offset += written
        view = view[written:]
    take(block)
