"""Hashes a file behind what is received of it, whose parts come in any order."""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable

from stoker.base.errors import HubError
from stoker.registry.hub.client import HubFile

Reading = Callable[[int, int, Callable[[bytes], None]], Awaitable[None]]
"""Reads from one offset to another, and gives what it has read, in order."""


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

    async def follow(self, reading: Reading) -> None:
        """Read on, unless somebody does already."""
        if not self._lock.locked():
            await self._follow(reading)

    async def sha256(self, reading: Reading) -> bytes:
        """Of the file, all of which is there. Raises `HubError` where it is not the hub's."""
        await self._follow(reading)
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

    async def _follow(self, reading: Reading) -> None:
        async with self._lock:
            while (end := self._there.pop(self._read_to, None)) is not None:
                await reading(self._read_to, end, self._take)

    def _take(self, block: bytes) -> None:
        self._sha256.update(block)
        if self._file.git_sha1 is not None:
            self._git.update(block)
        self._read_to += len(block)
