"""Helpers for tests of batches."""

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import openai
from openai.types import Batch

import stoker.demo

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


def put_file(client: httpx.Client, content: bytes, purpose: str = "batch") -> str:
    """Uploads an input file. Returns its id."""
    files = {"file": ("input.jsonl", content)}
    answer = client.post("/v1/files", files=files, data={"purpose": purpose})
    return answer.raise_for_status().json()["id"]


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
