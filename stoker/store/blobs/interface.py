"""What keeps bytes behind keys that the server has chosen: see `Blobs`."""

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol

Files = Mapping[str, tuple[str, int]]
"""path → (blob key, size in bytes)"""
Take = Callable[[bytes], None]
"""Is given bytes in order, in a worker thread."""


class StoreUnavailableError(Exception):
    """The store does not answer as it should, though it was asked again. What was acknowledged
    before is safe.
    """


class BlobLostError(FileNotFoundError):
    """The store has no such blob."""


@dataclass(frozen=True)
class PartOfFile:
    """A part that was received. All but the last have the size of the first."""

    number: int
    size: int
    sha256: bytes


@dataclass(frozen=True)
class WholeFile:
    """A file that was uploaded, all of it."""

    key: str
    size: int
    parts: Sequence[PartOfFile]
    """In order, without a gap."""


def part_key(key: str, number: int, sha256: bytes) -> str:
    """Of a file's part, where parts are blobs of their own."""
    return f"{key}/{number}-{sha256.hex()}"


def list_key(folder: str) -> str:
    """What the parts of a folder's files are, there."""
    return f"{folder}/parts"


@dataclass(frozen=True)
class Listed:
    key: str
    modified_at: datetime
    """By the store's clock."""


class Part(ABC):
    """One part on its way into a file. What was not kept leaves nothing that counts."""

    must_give_way = False
    """Whether an earlier one of its number has to be forgotten before `settle`."""

    @abstractmethod
    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Write on (sync, for threads)."""

    @abstractmethod
    async def sync(self, sha256: bytes) -> None:
        """Return when the bytes would survive, whatever is killed.

        Raises `StoreUnavailableError`, and `OSError` where the disk is full.
        """

    async def settle(self) -> None:  # noqa: B027 - where none gives way, there is nothing to do
        """Have it take the place of the earlier one of its number."""

    @abstractmethod
    async def close(self, *, is_kept: bool) -> None:
        """
        Args:
            is_kept: whether it is recorded. Else what was written of it goes.
        """


class FileReader(Protocol):
    """Some files by their callers' names (sync, for threads)."""

    def sizes(self) -> Mapping[str, int]: ...

    def read(self, path: str, offset: int, length: int) -> bytes:
        """At most `length` bytes from `offset`; fewer at the end of the file."""
        ...


class Blobs(ABC):
    """A folder of this machine, or a bucket that several servers share.

    There are blobs that are written whole, and files that are uploaded in parts. What reads or
    writes raises `StoreUnavailableError` where the store does not answer, and `BlobLostError` for
    what is not there.
    """

    is_shared: bool
    """Whether other servers write here, too: what one of them does not know is not garbage yet."""

    # --- blobs ---

    @abstractmethod
    async def put(self, key: str, content: bytes, content_type: str) -> None:
        """Write a new blob, durably. Cancelled, it leaves nothing, or what `sweep` finds."""

    @abstractmethod
    async def size(self, key: str) -> int: ...

    @abstractmethod
    def stream(self, key: str, start: int, end: int) -> AsyncGenerator[bytes]:
        """The bytes from `start` to `end`, in order."""

    async def get(self, key: str) -> bytes:
        size = await self.size(key)
        return b"".join([chunk async for chunk in self.stream(key, 0, size)])

    @abstractmethod
    def discard(self, key: str) -> None:
        """Delete a blob, if it is there: now, or soon, or once it is found to be garbage. To be
        called on the event loop.
        """

    @abstractmethod
    async def remove(self, key: str) -> None:
        """As `discard`; returns when it was tried."""

    async def link(self, key: str, expires_s: int) -> str | None:
        """Where everybody can get a blob for so long; None: from this server alone."""
        return None

    # --- files that are uploaded ---

    @abstractmethod
    def part(self, key: str, number: int, offset: int, earlier: bytes | None) -> Part:
        """
        Begin to write a part.

        Args:
            offset: where it begins in its file, bytes.
            earlier: SHA-256 of what is recorded under its number.
        """

    @abstractmethod
    async def complete(self, folder: str, files: Sequence[WholeFile]) -> None:
        """Nothing is written into these files any more, which are all below the folder: have them
        be read, by other servers, too.
        """

    def reopen(self, folder: str) -> None:  # noqa: B027 - only a bucket lists its files
        """Forget the list of a folder's files, as the folder is written to again."""

    def tidy(self, folder: str, files: Sequence[WholeFile]) -> None:  # noqa: B027 - see `complete`
        """Delete, in a moment, what lies below a folder and is no part of its files: nothing will
        ever be written there again.
        """

    @abstractmethod
    async def follow(
        self, key: str, parts: Sequence[PartOfFile], start: int, end: int, take: Take
    ) -> None:
        """Read the bytes from `start` to `end` of a file that is not complete yet."""

    @abstractmethod
    async def read(self, key: str, size: int, offset: int, length: int) -> bytes:
        """At most `length` bytes of a complete file of `size`; fewer at its end."""

    @abstractmethod
    def files(self, files: Files) -> FileReader:
        """A reader of complete files. To be made on the event loop and used in a thread."""

    @abstractmethod
    async def remove_file(self, key: str) -> None:
        """Delete what there is of a file, as `remove` does."""

    # --- on this machine ---

    @abstractmethod
    def local_path(self, key: str) -> Path | None:
        """Where a blob lies on this machine; None: it has to be fetched. Keys are the server's own,
        never a client's.
        """

    @abstractmethod
    async def place(self, files: Files, folder: Path) -> None:
        """Have a new folder hold complete files by their paths, which were checked: as links, or as
        copies that were compared with what was uploaded. Links may be placed again: those that
        lead elsewhere are replaced.
        """

    # --- upkeep ---

    @abstractmethod
    def listed(self, prefix: str) -> AsyncIterator[Sequence[Listed]]:
        """All below a prefix, some at a time."""

    @abstractmethod
    async def delete(self, keys: Sequence[str]) -> None:
        """Delete blobs, all of which exist."""

    @abstractmethod
    async def delete_prefix(self, prefix: str) -> int:
        """Delete every blob below a prefix; how many there were."""

    async def keys(self, prefix: str) -> Sequence[str]:
        """The keys of all blobs below a prefix."""
        return [one.key async for some in self.listed(prefix) for one in some]

    @abstractmethod
    async def now(self) -> datetime:
        """What time it is for the store, by whose clock blobs are as old as they are."""
