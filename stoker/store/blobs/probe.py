"""Whether a store does what a server needs of it."""

import secrets
from collections.abc import AsyncIterator
from datetime import UTC, datetime

from stoker.store.blobs.interface import Blobs, StoreUnavailableError

CLOCK = "clock"
_FOLDER = "probe"


async def tried(blobs: Blobs) -> AsyncIterator[tuple[str, float]]:
    """What works, one after the other; with `CLOCK`, how far ahead of this machine's the store's
    is, seconds, to a second.

    Raises `StoreUnavailableError` and `BlobLostError` where something does not.
    """
    key, content = f"{_FOLDER}/{secrets.token_hex(8)}", secrets.token_bytes(64)
    await blobs.put(key, content, "application/octet-stream")
    yield "write", 0.0
    if await blobs.get(key) != content:
        raise StoreUnavailableError("what is read is not what was written")
    yield "read", 0.0
    if key not in await blobs.keys(_FOLDER):
        raise StoreUnavailableError("what was written is not listed")
    yield "list", 0.0
    await blobs.delete([key])
    if key in await blobs.keys(_FOLDER):
        raise StoreUnavailableError("what was deleted is listed")
    yield "delete", 0.0
    asked = datetime.now(UTC)
    told = await blobs.now()
    between = asked + (datetime.now(UTC) - asked) / 2
    yield CLOCK, (told - between).total_seconds()
