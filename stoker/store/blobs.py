"""Blobs: server-chosen keys, bytes behind them, through obstore.

Committed blobs are objects of an obstore store, so that a bucket can take the folder's place.
Parts of an upload in progress are written straight into their place in the local folder instead:
an object store's own multipart upload cannot be resumed by another process, and assembling a large
file from part objects at the end would copy it once more.
"""

import contextlib
import ctypes
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import obstore
from obstore.store import LocalStore


@dataclass(frozen=True)
class BlobFiles:
    """A set of committed or uploaded files, read by the caller's names (sync, for threads)."""

    store: LocalStore
    keys: Mapping[str, tuple[str, int]]
    """path → (blob key, size in bytes)"""

    def sizes(self) -> Mapping[str, int]:
        return {path: size for path, (_, size) in self.keys.items()}

    def read(self, path: str, offset: int, length: int) -> bytes:
        """At most `length` bytes from `offset`; fewer at the end of the file."""
        key, size = self.keys[path]
        end = min(offset + length, size)
        if offset >= end:
            return b""
        return bytes(obstore.get_range(self.store, key, start=offset, end=end))


class Blobs:
    def __init__(self, root: Path) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self.root = root.resolve()
        self.store = LocalStore(prefix=self.root)

    def files(self, keys: Mapping[str, tuple[str, int]]) -> BlobFiles:
        return BlobFiles(self.store, keys)

    def local_path(self, key: str) -> Path:
        """Where a blob lies on this machine. Keys are the server's own, never a client's."""
        return self.root / key

    def open_at(self, key: str, offset: int) -> "PartFile":
        return PartFile(self.local_path(key), offset)

    def write(self, key: str, content: bytes) -> None:
        """Write a new blob, durably (sync)."""
        file = self.open_at(key, 0)
        try:
            file.write(content)
            file.sync()
        finally:
            file.close()

    def trim(self, key: str, size: int) -> None:
        """Cut off what was written behind a file's end and never became a part of it (sync)."""
        with self.local_path(key).open("r+b") as file:
            if file.seek(0, os.SEEK_END) > size:
                file.truncate(size)
                os.fsync(file.fileno())

    def copy_into(self, source: str, key: str, offset: int) -> None:
        """Write a whole blob into another one's place at an offset, durably (sync)."""
        target = self.open_at(key, offset)
        try:
            with self.local_path(source).open("rb") as file:
                while block := file.read(_COPY_BYTES):
                    target.write(block)
            target.sync()
        finally:
            target.close()

    def discard(self, key: str) -> None:
        """Delete a blob of an upload in progress, if it is there (sync)."""
        self.local_path(key).unlink(missing_ok=True)

    async def keys(self, prefix: str) -> Sequence[str]:
        """The keys of all blobs below a prefix."""
        # The overloads that are not used here speak of a library that is not installed.
        listing = obstore.list(self.store, prefix)  # pyright: ignore[reportUnknownMemberType]
        return [item["path"] for item in await listing.collect_async()]

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete blobs, all of which exist."""
        if keys:
            await obstore.delete_async(self.store, keys)
        for folder in {self.local_path(key).parent for key in keys}:
            self._remove_empty_folders(folder)

    async def delete_prefix(self, prefix: str) -> int:
        """Delete every blob below a prefix; how many there were."""
        keys = await self.keys(prefix)
        await self.delete(keys)
        self._remove_empty_folders(self.local_path(prefix))
        return len(keys)

    def _remove_empty_folders(self, folder: Path) -> None:
        """Remove a folder and those above it, as far as there is nothing in them."""
        while folder != self.root:
            try:
                folder.rmdir()
            except FileNotFoundError:
                pass
            except OSError:
                return
            folder = folder.parent


class PartFile:
    """Sequential writes into a file from an offset on, other parts untouched (sync)."""

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
        """Return when the bytes would survive a power cut."""
        os.fdatasync(self._descriptor)

    def discard(self) -> None:
        """Give the space of what was written back to the disk, where the file system can."""
        if self._offset > self._start:
            _punch_hole(self._descriptor, self._start, self._offset - self._start)
            self._offset = self._start

    def close(self) -> None:
        os.close(self._descriptor)


_COPY_BYTES = 1024 * 1024
_ATTEMPTS = 5
_PUNCH_HOLE_KEEP_SIZE = 0x02 | 0x01  # linux/falloc.h


def _open_in_new_folder(path: Path) -> int:
    for _ in range(_ATTEMPTS):
        # A folder above may be removed, being empty, just before this one is made in it.
        with contextlib.suppress(FileNotFoundError):
            path.parent.mkdir(parents=True, exist_ok=True)
            return os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    raise FileNotFoundError(path)


def _punch_hole(descriptor: int, offset: int, length: int) -> None:
    # Python has posix_fallocate only. Without a hole the bytes stay until they are overwritten or
    # the session is removed: they cost space and are never read.
    fallocate = getattr(ctypes.CDLL(None), "fallocate", None)
    if fallocate is not None:
        fallocate(descriptor, _PUNCH_HOLE_KEEP_SIZE, ctypes.c_int64(offset), ctypes.c_int64(length))
