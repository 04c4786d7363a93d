"""Blob operations use separate threads."""

import asyncio
import threading
from pathlib import Path

import pytest

from stoker.store.blobs import Folder


@pytest.mark.case(32)
async def test_work_that_takes_all_of_asyncios_threads_keeps_no_upload_waiting(
    tmp_path: Path,
) -> None:
    going = threading.Event()
    blocking_tasks = [asyncio.create_task(asyncio.to_thread(going.wait, 60)) for _ in range(64)]
    await asyncio.sleep(0.05)
    blobs = Folder(tmp_path)
    try:
        async with asyncio.timeout(10):
            key = "artifacts/a/b"
            await blobs.put(key, b"content")
            assert await blobs.get(key) == b"content"
    finally:
        going.set()
        await asyncio.gather(*blocking_tasks)
