"""Blobs in a folder of this machine.

An uploaded file is one file from the start. Its parts are written directly into their places, so
nothing is copied at the end.
"""

import asyncio
import contextlib
import ctypes
import os
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import obstore
from obstore.store import LocalStore

from stoker.store.blobs.interface import (
    BlobLostError,
    BlobPart,
    Blobs,
    BlobWriter,
    Files,
    ListedBlob,
    PartOfFile,
    Take,
    WholeFile,
)
from stoker.store.blobs.threads import on_disk


@dataclass(frozen=True)
class BlobFiles:
    """A set of committed or uploaded files, read by the caller's names (sync, for threads)."""

    store: LocalStore
    keys: Files

    def sizes(self) -> Mapping[str, int]:
        return {path: size for path, (_, size) in self.keys.items()}

    def read(self, path: str, offset: int, length: int) -> bytes:
        """Returns at most `length` bytes from `offset`; fewer at the end of the file."""
        key, size = self.keys[path]
        end = min(offset + length, size)
        if offset >= end:
            return b""
        return bytes(obstore.get_range(self.store, key, start=offset, end=end))


class Folder(Blobs):
    is_shared = False

    def __init__(self, root: Path) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self.root = root.resolve()
        self._named_root = root.absolute()
        """Root as passed by the caller. Links use it, so that the root may be a link itself."""
        self.store = LocalStore(prefix=self.root)

    # --- blobs ---

    async def put(self, key: str, content: bytes, content_type: str = "") -> None:
        writing = asyncio.ensure_future(on_disk(self.write, key, content))
        try:
            await asyncio.shield(writing)
        except BaseException:
            # A thread cannot be cancelled. It must finish first, so that its file can be deleted.
            await asyncio.gather(writing, return_exceptions=True)
            self.discard(key)
            raise

    def write(self, key: str, content: bytes) -> None:
        """Writes a new blob durably (sync)."""
        file = PlacedBytes(self.local_path(key), 0)
        try:
            file.write(content)
            file.sync()
        finally:
            file.close()

    def writer(self) -> BlobWriter:
        return FolderWriter(self.root, self.local_path(f"{UNFINISHED}/{secrets.token_hex(16)}"))

    async def sweep(self, before: datetime) -> int:
        return await on_disk(self._sweep, before.timestamp())

    def _sweep(self, before: float) -> int:
        removed = 0
        for path in self.local_path(UNFINISHED).glob("*"):
            # Another server may finish or delete it at the same time.
            with contextlib.suppress(FileNotFoundError):
                if path.stat().st_mtime < before:
                    path.unlink()
                    removed += 1
        return removed

    async def size(self, key: str) -> int:
        path = self.local_path(key)
        try:
            # Faster than starting a thread.
            return path.stat().st_size
        except FileNotFoundError as error:
            raise BlobLostError(key) from error

    async def stream(self, key: str, start: int, end: int) -> AsyncGenerator[bytes]:
        path = self.local_path(key)
        while start < end:
            block = await on_disk(_read, path, start, min(_COPY_BYTES, end - start))
            if not block:
                return
            yield block
            start += len(block)

    async def get(self, key: str) -> bytes:
        try:
            return await on_disk(self.local_path(key).read_bytes)
        except FileNotFoundError as error:
            raise BlobLostError(key) from error

    def discard(self, key: str) -> None:
        self.local_path(key).unlink(missing_ok=True)

    async def remove(self, key: str) -> None:
        # Deleting a large file takes a while.
        await on_disk(self.discard, key)

    # --- uploaded files ---

    def part(self, key: str, number: int, offset: int, earlier: bytes | None) -> BlobPart:
        return FolderPart(self, key, number, offset, earlier)

    async def complete(self, folder: str, files: Sequence[WholeFile]) -> None:
        await on_disk(self._trim, files)

    def _trim(self, files: Sequence[WholeFile]) -> None:
        for file in files:
            self.trim(file.key, file.size)

    def trim(self, key: str, size: int) -> None:
        """Truncates bytes after a file's end that never became a part of it (sync)."""
        with self.local_path(key).open("r+b") as file:
            if file.seek(0, os.SEEK_END) > size:
                file.truncate(size)
                os.fsync(file.fileno())

    async def follow(
        self, key: str, parts: Sequence[PartOfFile], start: int, end: int, take: Take
    ) -> None:
        await on_disk(self._follow, key, start, end, take)

    def _follow(self, key: str, start: int, end: int, take: Take) -> None:
        with self.local_path(key).open("rb") as source:
            source.seek(start)
            while block := source.read(min(_COPY_BYTES, end - start)):
                take(block)
                start += len(block)

    async def read(self, key: str, size: int, offset: int, length: int) -> bytes:
        length = max(0, min(length, size - offset))
        return await on_disk(_read, self.local_path(key), offset, length)

    def files(self, files: Files) -> BlobFiles:
        return BlobFiles(self.store, files)

    async def remove_file(self, key: str) -> None:
        await self.remove(key)

    # --- on this machine ---

    def local_path(self, key: str) -> Path:
        return self.root / key

    async def place(self, files: Files, folder: Path) -> None:
        await on_disk(self._link, files, folder)

    def _link(self, files: Files, folder: Path) -> None:
        """Creates relative links, which stay valid after both folders have moved.

        Replaces a link with another target, such as the former location of the data folder.
        """
        for name, (key, size) in files.items():
            link = folder / name
            link.parent.mkdir(parents=True, exist_ok=True)
            target = os.path.relpath(self._named_root / key, link.parent.resolve())
            if _is_in_place(link, target, size):
                continue
            link.unlink(missing_ok=True)
            link.symlink_to(target)

    # --- maintenance ---

    async def listed(self, prefix: str) -> AsyncIterator[Sequence[ListedBlob]]:
        # The other overloads refer to a library that is not installed.
        listing = obstore.list(self.store, prefix)  # pyright: ignore[reportUnknownMemberType]
        async for some in listing:
            yield [ListedBlob(entry["path"], entry["last_modified"]) for entry in some]

    async def delete(self, keys: Sequence[str]) -> None:
        if keys:
            await obstore.delete_async(self.store, keys)
        for folder in {self.local_path(key).parent for key in keys}:
            self._remove_empty_folders(folder)

    async def delete_prefix(self, prefix: str) -> int:
        keys = await self.keys(prefix)
        await self.delete(keys)
        self._remove_empty_folders(self.local_path(prefix))
        return len(keys)

    async def now(self) -> datetime:
        return datetime.now(UTC)

    def _remove_empty_folders(self, folder: Path) -> None:
        """Removes a folder and its parents as long as they are empty."""
        while folder != self.root:
            try:
                folder.rmdir()
            except FileNotFoundError:
                pass
            except OSError:
                return
            folder = folder.parent


class FolderPart(BlobPart):
    """Part that is written into its place in the file. If a part with the same number exists, the
    new one is written next to the file: the acknowledged part stays unchanged until all new bytes
    are stored.
    """

    def __init__(
        self, blobs: Folder, key: str, number: int, offset: int, earlier: bytes | None
    ) -> None:
        self._blobs = blobs
        self._key = key
        self._offset = offset
        self._earlier = earlier
        self._aside = None if earlier is None else f"{key}.{number}"
        place = (key, offset) if self._aside is None else (self._aside, 0)
        self._file = PlacedBytes(blobs.local_path(place[0]), place[1])

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._file.write(data)

    async def sync(self, sha256: bytes) -> None:
        await on_disk(self._file.sync)
        self.must_give_way = self._aside is not None and self._earlier != sha256

    async def settle(self) -> None:
        if self._aside is not None and self.must_give_way:
            await on_disk(self._copy_into_place, self._aside)

    def _copy_into_place(self, aside: str) -> None:
        target = PlacedBytes(self._blobs.local_path(self._key), self._offset)
        try:
            with self._blobs.local_path(aside).open("rb") as file:
                while block := file.read(_COPY_BYTES):
                    target.write(block)
            target.sync()
        finally:
            target.close()

    async def close(self, *, is_kept: bool) -> None:
        if not is_kept or self._aside is not None:
            await on_disk(self._file.discard)
        self._file.close()
        if self._aside is not None:
            await on_disk(self._blobs.discard, self._aside)


class FolderWriter(BlobWriter):
    """Blob that is written under a name of its own and renamed at the end."""

    def __init__(self, root: Path, path: Path) -> None:
        self._root = root
        self._path = path
        self._file = PlacedBytes(path, 0)
        self._is_finished = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._file.write(data)

    async def finish(self, key: str, content_type: str) -> None:
        await on_disk(self._finish, self._root / key)
        self._is_finished = True

    def _finish(self, target: Path) -> None:
        self._file.sync()
        target.parent.mkdir(parents=True, exist_ok=True)
        self._path.rename(target)
        descriptor = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    async def close(self) -> None:
        await on_disk(self._close)

    def _close(self) -> None:
        self._file.close()
        if not self._is_finished:
            self._path.unlink(missing_ok=True)


class PlacedBytes:
    """Sequential writer into a file from an offset on. Other parts stay unchanged (sync)."""

    def __init__(self, path: Path, offset: int) -> None:
        self._descriptor = _open_in_new_folder(path)
        self._start = offset
        self._offset = offset

    def write(self, data: bytes | bytearray | memoryview) -> None:
        view = memoryview(data)
        while view:
            written = os.pwrite(self._descriptor, view, self._offset)
            self._offset += written
            view = view[written:]

    def sync(self) -> None:
        """Returns when the bytes would survive a power cut."""
        os.fdatasync(self._descriptor)

    def discard(self) -> None:
        """Returns the space of the written bytes to the disk, if the file system supports this."""
        if self._offset > self._start:
            _punch_hole(self._descriptor, self._start, self._offset - self._start)
            self._offset = self._start

    def close(self) -> None:
        os.close(self._descriptor)


UNFINISHED = "unfinished"
"""Folder of blobs that are being written."""
_COPY_BYTES = 1024 * 1024
_ATTEMPTS = 5
_PUNCH_HOLE_KEEP_SIZE = 0x02 | 0x01  # linux/falloc.h


def _is_in_place(link: Path, wanted: str, size: int) -> bool:
    """Returns True for the expected link, and for a file: some copies of folders follow links."""
    if link.is_symlink():
        return str(link.readlink()) == wanted
    return link.is_file() and link.stat().st_size == size


def _read(path: Path, offset: int, length: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return file.read(length)
    except FileNotFoundError as error:
        raise BlobLostError(str(path.name)) from error


def _open_in_new_folder(path: Path) -> int:
    for _ in range(_ATTEMPTS):
        # Another thread may remove an empty parent folder just before the file is created in it.
        with contextlib.suppress(FileNotFoundError):
            path.parent.mkdir(parents=True, exist_ok=True)
            return os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    raise FileNotFoundError(path)


def _punch_hole(descriptor: int, offset: int, length: int) -> None:
    # Python provides only posix_fallocate. Without a hole the bytes stay until they are overwritten
    # or the session is removed. They cost space and are never read.
    fallocate = getattr(ctypes.CDLL(None), "fallocate", None)
    if fallocate is not None:
        fallocate(descriptor, _PUNCH_HOLE_KEEP_SIZE, ctypes.c_int64(offset), ctypes.c_int64(length))
