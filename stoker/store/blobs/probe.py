"""Checks that a store supports everything that a server needs."""

import secrets
from collections.abc import AsyncIterator
from datetime import UTC, datetime

from stoker.store.blobs.interface import Blobs, StoreUnavailableError

CLOCK = "clock"
_FOLDER = "probe"


async def tried(blobs: Blobs) -> AsyncIterator[tuple[str, float]]:
    """Yields the name of each operation that works, in order. With `CLOCK` it yields how many
    seconds the store's clock is ahead of this machine's, accurate to a second.

    Raises `StoreUnavailableError` or `BlobLostError` if an operation fails.
    """
    key, content = f"{_FOLDER}/{secrets.token_hex(8)}", secrets.token_bytes(64)
    await blobs.put(key, content, "application/octet-stream")
    yield "write", 0.0
    if await blobs.get(key) != content:
        raise StoreUnavailableError(
            "the content that was read differs from the content that was written"
        )
    yield "read", 0.0
    if key not in await blobs.keys(_FOLDER):
        raise StoreUnavailableError("a written object is missing in the list")
    yield "list", 0.0
    await blobs.delete([key])
    if key in await blobs.keys(_FOLDER):
        raise StoreUnavailableError("a deleted object is still in the list")
    yield "delete", 0.0
    asked_at = datetime.now(UTC)
    store_time = await blobs.now()
    between = asked_at + (datetime.now(UTC) - asked_at) / 2
    yield CLOCK, (store_time - between).total_seconds()
