"""Bytes on their way to a bucket. They are stored on this machine's disk until they are complete.

The file there has no name, so a killed server leaves nothing.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import IO

from stoker.store.blobs.interface import BlobPart, BlobWriter


class BucketPart(BlobPart):
    """Part that is written to the bucket in one piece when its digest is known."""

    def __init__(self, file: IO[bytes], put: Callable[[bytes, IO[bytes]], Awaitable[None]]) -> None:
        """
        Args:
            put: writes the file as a part with this SHA-256.
        """
        self._file = file
        self._put = put

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._file.write(data)

    async def sync(self, sha256: bytes) -> None:
        await asyncio.to_thread(self._file.flush)
        await self._put(sha256, self._file)

    async def close(self, *, is_kept: bool) -> None:
        self._file.close()
        # Written bytes that were not recorded, or were recorded before, stay. Another server may
        # have written the same bytes and be about to record them. They are deleted when the upload
        # is over.


class BucketWriter(BlobWriter):
    """Blob that is written to the bucket when it is complete."""

    def __init__(
        self, file: IO[bytes], put: Callable[[str, IO[bytes], str], Awaitable[None]]
    ) -> None:
        """
        Args:
            put: writes the file under a key, with a content type.
        """
        self._file = file
        self._put = put

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._file.write(data)

    async def finish(self, key: str, content_type: str) -> None:
        await asyncio.to_thread(self._file.flush)
        await self._put(key, self._file, content_type)

    async def close(self) -> None:
        self._file.close()
