"""An asynchronous upload client."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

ARTIFACTS = "/v1/model-artifacts"
MIB = 1 << 20


@dataclass
class Uploading:
    client: httpx.AsyncClient
    artifact_id: str
    upload_id: str

    @classmethod
    async def open(cls, client: httpx.AsyncClient, artifact_id: str = "") -> "Uploading":
        if not artifact_id:
            made = await client.post(ARTIFACTS, json={"display_name": "model"})
            artifact_id = made.raise_for_status().json()["id"]
        opened = await client.post(f"{ARTIFACTS}/{artifact_id}/uploads")
        return cls(client, artifact_id, opened.raise_for_status().json()["upload_id"])

    @property
    def url(self) -> str:
        return f"{ARTIFACTS}/{self.artifact_id}/uploads/{self.upload_id}"

    @property
    def prefix(self) -> str:
        """Prefix of the session's keys."""
        return f"artifacts/{self.artifact_id}/{self.upload_id}"

    def at(self, client: httpx.AsyncClient) -> "Uploading":
        """Returns the same session, accessed through another server."""
        return Uploading(client, self.artifact_id, self.upload_id)

    async def put(self, path: str, content: bytes, **headers: str) -> httpx.Response:
        return await self.client.put(f"{self.url}/files/{path}", content=content, headers=headers)

    async def put_part(self, path: str, number: int, content: bytes) -> httpx.Response:
        return await self.put(f"{path}/parts/{number}", content)

    async def put_folder(self, folder: Path) -> None:
        for path in sorted(folder.iterdir()):
            (await self.put(path.name, path.read_bytes())).raise_for_status()

    async def complete(self) -> dict[str, Any]:
        answer = await self.client.post(f"{self.url}/complete")
        return answer.raise_for_status().json()["artifact"]


async def pushed(client: httpx.AsyncClient, folder: Path) -> Uploading:
    """Uploads a folder as a ready artifact."""
    upload = await Uploading.open(client)
    await upload.put_folder(folder)
    artifact = await upload.complete()
    assert artifact["status"] == "ready", artifact
    return upload


async def eventually(condition: Callable[[], bool], timeout: float = 60) -> None:
    """Waits until a condition is true."""
    async with asyncio.timeout(timeout):
        while not await asyncio.to_thread(condition):
            await asyncio.sleep(0.02)


def code(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["code"]
