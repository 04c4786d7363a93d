"""Helpers for tests of batches."""

import asyncio
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import openai
from openai.types import Batch

import stoker.demo
from stoker.base.config import Settings
from stoker.base.ids import Prefix, new_id
from stoker.store import db
from stoker.store.blobs import Blobs, open_blobs
from stoker.store.db import Database
from stoker.store.tables.files import File, Purpose
from tests.support.server import Server

MODELS = Path(stoker.demo.__file__).parent / "models"
EMBEDDINGS, CHAT = "/v1/embeddings", "/v1/chat/completions"
SENTIMENT = "/v1/classifications/text"
ENDED = ("completed", "failed", "expired", "cancelled")


def line(custom_id: str, url: str, **body: Any) -> dict[str, Any]:
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body}


def jsonl(lines: Iterable[Mapping[str, Any]]) -> bytes:
    return b"".join(json.dumps(item).encode() + b"\n" for item in lines)


def embedding_lines(count: int, model: str = "embed") -> list[dict[str, Any]]:
    return [line(f"r{n}", EMBEDDINGS, model=model, input=f"text number {n}") for n in range(count)]


async def store_file(
    database: Database,
    blobs: Blobs,
    account_id: str,
    content: bytes,
    purpose: Purpose = Purpose.BATCH,
) -> str:
    """Stores an input file of an account. Returns its id."""
    now = db.now()
    file = File(
        id=new_id(Prefix.FILE),
        account_id=account_id,
        deployment_id="",
        purpose=purpose.value,
        content_type="application/octet-stream",
        filename="input.jsonl",
        size=len(content),
        created_at=now,
        expires_at=now + timedelta(days=30),
    )
    await blobs.put(file.blob_key, content, file.content_type)
    async with database.transaction() as session:
        session.add(file)
    return file.id


def put_file(
    server: Server,
    account_id: str,
    content: bytes,
    purpose: Purpose = Purpose.BATCH,
    **storage: Any,
) -> str:
    """Stores an input file of an account on a running server. Returns its id.

    Args:
        storage: settings of the server's database and blobs.
    """
    settings = Settings(data_dir=server.data_dir, **storage)

    async def store() -> str:
        database = Database(settings.resolved_database_url)
        try:
            blobs = open_blobs(settings.blob_url, settings.data_dir, timeout_s=5)
            return await store_file(database, blobs, account_id, content, purpose)
        finally:
            await database.close()

    return asyncio.run(store())


def create(sdk: openai.OpenAI, file_id: str, endpoint: str, **fields: Any) -> Batch:
    return sdk.batches.create(
        input_file_id=file_id,
        endpoint=endpoint,  # type: ignore[arg-type]
        completion_window="24h",
        **fields,
    )


def ended(sdk: openai.OpenAI, batch_id: str, patience_s: float = 120) -> Batch:
    """Waits until a batch has ended."""
    deadline = time.monotonic() + patience_s
    while (batch := sdk.batches.retrieve(batch_id)).status not in ENDED:
        assert time.monotonic() < deadline, batch
        time.sleep(0.1)
    return batch


def results(client: httpx.Client, file_id: str | None) -> list[dict[str, Any]]:
    """Returns the lines of a result file."""
    if file_id is None:
        return []
    content = client.get(f"/v1/files/{file_id}/content").raise_for_status().content
    assert content.endswith(b"\n")
    return [json.loads(item) for item in content.splitlines()]


def by_id(lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns lines by their `custom_id`, each of which occurs once."""
    found = {item["custom_id"]: item for item in lines}
    assert len(found) == len(lines)
    return found
