"""Hashes a file behind what is received of it, whose parts come in any order."""

import asyncio
import hashlib
from pathlib import Path

from stoker.errors import HubError
from stoker.hub.client import HubFile

_BLOCK_BYTES = 1 << 20


class Digest:
    """What a file's bytes are, as far as they are there without a gap."""

    def __init__(self, file: HubFile) -> None:
        self._file = file
        self._there: dict[int, int] = {}
        """Where pieces that were not read yet begin → where they end."""
        self._read_to = 0
        self._lock = asyncio.Lock()
        self._sha256 = hashlib.sha256()
        # Git's name of a blob: SHA-1 of a header and its bytes.
        self._git = hashlib.sha1(b"blob %d\x00" % file.size, usedforsecurity=False)

    def add(self, start: int, end: int) -> None:
        """These bytes are durable."""
        self._there[start] = end

    async def follow(self, path: Path) -> None:
        """Read on, unless somebody does already."""
        if not self._lock.locked():
            await self._follow(path)

    async def sha256(self, path: Path) -> bytes:
        """Of the file, all of which is there. Raises `HubError` where it is not the hub's."""
        await self._follow(path)
        file = self._file
        found = (self._sha256.hexdigest(), self._git.hexdigest())
        told = (file.sha256, file.git_sha1)
        is_wrong = any(one not in (None, other) for one, other in zip(told, found, strict=True))
        if self._read_to != file.size or is_wrong:
            raise HubError(
                f"The bytes that the hub sent of {file.path} are not those that its list of files "
                "names by their digest. Begin the import again.",
                code="hub_mismatch",
            )
        return self._sha256.digest()

    async def _follow(self, path: Path) -> None:
        async with self._lock:
            while (end := self._there.pop(self._read_to, None)) is not None:
                await asyncio.to_thread(self._read, path, end)

    def _read(self, path: Path, end: int) -> None:
        with path.open("rb") as source:
            source.seek(self._read_to)
            while block := source.read(min(_BLOCK_BYTES, end - self._read_to)):
                self._sha256.update(block)
                if self._file.git_sha1 is not None:
                    self._git.update(block)
                self._read_to += len(block)
