# `python -m tools.client_api` writes this file.
"""Operations of media, from the OpenAPI document."""

from collections.abc import AsyncIterator
from typing import Literal, Unpack

from ... import models, params
from ...request import quoted
from ..api import AsyncResource


class AsyncFileOperations(AsyncResource):
    async def get(self, file_id: str) -> models.File:
        """`GET /v1/files/{file_id}`: Get a file's metadata."""
        return await self._api.value(models.File, "GET", f"/v1/files/{quoted(file_id)}")

    async def delete(self, file_id: str) -> models.Deleted:
        """`DELETE /v1/files/{file_id}`: Delete a file before it expires."""
        return await self._api.value(models.Deleted, "DELETE", f"/v1/files/{quoted(file_id)}")

    def list(
        self,
        *,
        limit: int | None = None,
        order: Literal["asc", "desc"] | None = None,
        purpose: str | None = None,
    ) -> AsyncIterator[models.File]:
        """`GET /v1/files`: List the uploaded and generated files that have not expired."""
        return self._api.pages(
            models.File, "/v1/files", limit=limit, query={"order": order, "purpose": purpose}
        )


class AsyncVideoOperations(AsyncResource):
    async def create(self, **fields: Unpack[params.VideoCreateParams]) -> models.Video:
        """`POST /v1/videos`: Create a video. The video is a job that is durable once this
        response is sent.
        """
        return await self._api.value(
            models.Video,
            "POST",
            "/v1/videos",
            body=fields,
            media="input_reference",
            is_created=True,
        )

    async def get(self, video_id: str) -> models.Video:
        """`GET /v1/videos/{video_id}`: Get a video's state: its progress, or how it ended."""
        return await self._api.value(models.Video, "GET", f"/v1/videos/{quoted(video_id)}")

    async def delete(self, video_id: str) -> models.Deleted:
        """`DELETE /v1/videos/{video_id}`: Delete a video with its content. A video that is
        being made is stopped.
        """
        return await self._api.value(models.Deleted, "DELETE", f"/v1/videos/{quoted(video_id)}")

    def list(
        self, *, limit: int | None = None, order: Literal["asc", "desc"] | None = None
    ) -> AsyncIterator[models.Video]:
        """`GET /v1/videos`: List videos, including waiting and failed ones."""
        return self._api.pages(models.Video, "/v1/videos", limit=limit, query={"order": order})
