"""Interface of a store for bytes under keys that the server chooses: see `Blobs`."""

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol

Files = Mapping[str, tuple[str, int]]
"""path → (blob key, size in bytes)"""
Take = Callable[[bytes], None]
"""Callback that receives bytes in order, in a worker thread."""


class StoreUnavailableError(Exception):
    """Raised if the store still fails after retries. Data that was acknowledged before is safe."""


class BlobLostError(FileNotFoundError):
    """Raised if the store has no such blob."""


@dataclass(frozen=True)
class PartOfFile:
    """A part that was received. All parts except the last have the size of the first."""

    number: int
    size: int
    sha256: bytes


@dataclass(frozen=True)
class WholeFile:
    """A completely uploaded file."""

    key: str
    size: int
    parts: Sequence[PartOfFile]
    """Parts in order, without a gap."""


def part_key(key: str, number: int, sha256: bytes) -> str:
    """Returns the key of a file's part, for stores that keep parts as separate blobs."""
    return f"{key}/{number}-{sha256.hex()}"


def list_key(folder: str) -> str:
    """Returns the key of the list with the parts of a folder's files."""
    return f"{folder}/parts"


@dataclass(frozen=True)
class ListedBlob:
    key: str
    modified_at: datetime
    """Time of the last change by the store's clock."""


class BlobPart(ABC):
    """A part that is being written into a file. A part that was not kept leaves no valid data."""

    must_give_way = False
    """True if an earlier part with the same number must be forgotten before `settle`."""

    @abstractmethod
    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Writes the next bytes (sync, for threads)."""

    @abstractmethod
    async def sync(self, sha256: bytes) -> None:
        """Returns when the bytes would survive a crash.

        Raises `StoreUnavailableError`, and `OSError` if the disk is full.
        """

    async def settle(self) -> None:  # noqa: B027 - where none gives way, there is nothing to do
        """Replaces the earlier part with the same number."""

    @abstractmethod
    async def close(self, *, is_kept: bool) -> None:
        """
        Args:
            is_kept: True if the part is recorded. Otherwise its written bytes are deleted.
        """


class BlobWriter(ABC):
    """A blob that is written in blocks. It exists only after `finish`."""

    @abstractmethod
    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Writes the next bytes (sync, for threads)."""

    @abstractmethod
    async def finish(self, key: str, content_type: str) -> None:
        """Stores the bytes durably as a new blob.

        Raises `StoreUnavailableError`, and `OSError` if the disk is full.
        """

    @abstractmethod
    async def close(self) -> None:
        """Deletes the bytes, unless they became a blob."""


class FileReader(Protocol):
    """Reads a set of files by the caller's names (sync, for threads)."""

    def sizes(self) -> Mapping[str, int]: ...

    def read(self, path: str, offset: int, length: int) -> bytes:
        """Returns at most `length` bytes from `offset`; fewer at the end of the file."""
        ...


class Blobs(ABC):
    """Blob store in a folder of this machine or in a bucket that several servers share.

    It holds blobs that are written in one piece, and files that are uploaded in parts. Methods that
    read or write raise `StoreUnavailableError` if the store does not answer, and `BlobLostError` if
    the blob does not exist.
    """

    is_shared: bool
    """True if other servers write here, too. Then a blob that this server does not know is not
    necessarily garbage.
    """

    # --- blobs ---

    @abstractmethod
    async def put(self, key: str, content: bytes, content_type: str) -> None:
        """Writes a new blob durably. If cancelled, it leaves nothing, or a blob that `sweep`
        finds.
        """

    @abstractmethod
    def writer(self) -> BlobWriter:
        """Starts a blob of unknown size. The bytes of a killed server are deleted by `sweep`."""

    async def sweep(self, before: datetime) -> int:
        """Deletes bytes of blobs that were last written to before a time and never finished.
        Returns their number.
        """
        return 0

    @abstractmethod
    async def size(self, key: str) -> int: ...

    @abstractmethod
    def stream(self, key: str, start: int, end: int) -> AsyncGenerator[bytes]:
        """Yields the bytes from `start` to `end` in order."""

    async def get(self, key: str) -> bytes:
        size = await self.size(key)
        return b"".join([chunk async for chunk in self.stream(key, 0, size)])

    @abstractmethod
    def discard(self, key: str) -> None:
        """Deletes a blob, if it exists: immediately, soon, or when it is found as garbage. Must be
        called on the event loop.
        """

    @abstractmethod
    async def remove(self, key: str) -> None:
        """Deletes a blob like `discard`, but returns only after the attempt."""

    async def link(self, key: str, expires_s: int) -> str | None:
        """Returns a public URL of a blob that is valid for `expires_s` seconds. None if only this
        server can serve it.
        """
        return None

    # --- uploaded files ---

    @abstractmethod
    def part(self, key: str, number: int, offset: int, earlier: bytes | None) -> BlobPart:
        """Starts writing a part.

        Args:
            offset: offset of the part in its file, in bytes.
            earlier: SHA-256 of the part that is recorded under this number.
        """

    @abstractmethod
    async def complete(self, folder: str, files: Sequence[WholeFile]) -> None:
        """Completes files that are all below the folder. They are not written any more and become
        readable, also for other servers.
        """

    def reopen(self, folder: str) -> None:  # noqa: B027 - only a bucket lists its files
        """Forgets the list of a folder's files, because the folder is written to again."""

    def tidy(self, folder: str, files: Sequence[WholeFile]) -> None:  # noqa: B027 - see `complete`
        """Starts deleting objects below a folder that are not part of its files. The folder must
        never be written to again.
        """

    @abstractmethod
    async def follow(
        self, key: str, parts: Sequence[PartOfFile], start: int, end: int, take: Take
    ) -> None:
        """Reads the bytes from `start` to `end` of an incomplete file."""

    @abstractmethod
    async def read(self, key: str, size: int, offset: int, length: int) -> bytes:
        """Returns at most `length` bytes of a complete file of `size`; fewer at its end."""

    @abstractmethod
    def files(self, files: Files) -> FileReader:
        """Returns a reader of complete files. It must be created on the event loop and used in a
        thread.
        """

    @abstractmethod
    async def remove_file(self, key: str) -> None:
        """Deletes all objects of a file, like `remove`."""

    # --- on this machine ---

    @abstractmethod
    def local_path(self, key: str) -> Path | None:
        """Returns the path of a blob on this machine. None if it must be fetched. Keys always come
        from the server, never from a client.
        """

    @abstractmethod
    async def place(self, files: Files, folder: Path) -> None:
        """Places complete files into a new folder under their checked paths: as links, or as copies
        that were compared with the upload. Links may be placed again, and links with another target
        are replaced.
        """

    # --- maintenance ---

    @abstractmethod
    def listed(self, prefix: str) -> AsyncIterator[Sequence[ListedBlob]]:
        """Yields all blobs below a prefix in batches."""

    @abstractmethod
    async def delete(self, keys: Sequence[str]) -> None:
        """Deletes blobs, all of which exist."""

    @abstractmethod
    async def delete_prefix(self, prefix: str) -> int:
        """Deletes all blobs below a prefix and returns their number."""

    async def keys(self, prefix: str) -> Sequence[str]:
        """Returns the keys of all blobs below a prefix."""
        return [blob.key async for some in self.listed(prefix) for blob in some]

    @abstractmethod
    async def now(self) -> datetime:
        """Returns the current time by the store's clock, which also sets the modification times of
        blobs.
        """
