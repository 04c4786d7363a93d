"""Hashes a file while its parts arrive in any order."""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable

from stoker.base.errors import HubError
from stoker.registry.hub.client import HubFile

Reading = Callable[[int, int, Callable[[bytes], None]], Awaitable[None]]
"""Reads the bytes between two offsets and passes them to the callback in order."""


class Digest:
    """Digest of a file's received bytes, up to the first gap."""

    def __init__(self, file: HubFile) -> None:
        self._file = file
        self._there: dict[int, int] = {}
        """Maps the start of each unread piece to its end."""
        self._read_to = 0
        self._lock = asyncio.Lock()
        self._sha256 = hashlib.sha256()
        # Git identifies a blob by the SHA-1 of a header and its bytes.
        self._git = hashlib.sha1(b"blob %d\x00" % file.size, usedforsecurity=False)

    def add(self, start: int, end: int) -> None:
        """Records that the bytes from `start` to `end` are durable."""
        self._there[start] = end

    async def follow(self, reading: Reading) -> None:
        """Hashes the bytes available so far, unless another task does it already."""
        if not self._lock.locked():
            await self._follow(reading)

    async def sha256(self, reading: Reading) -> bytes:
        """Returns the SHA-256 of the complete file. Raises `HubError` if the digest differs from
        the hub's.
        """
        await self._follow(reading)
        file = self._file
        computed = (self._sha256.hexdigest(), self._git.hexdigest())
        expected = (file.sha256, file.git_sha1)
        is_wrong = any(
            digest not in (None, other) for digest, other in zip(expected, computed, strict=True)
        )
        if self._read_to != file.size or is_wrong:
            raise HubError(
                f"The bytes that the hub sent for {file.path} do not match the digest in "
                "its list of files. Start the import again.",
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
