# `python -m tools.client_api` writes this file.
"""Operations of batches, from the OpenAPI document."""

from collections.abc import AsyncIterator
from typing import Literal, Unpack

from ... import models, params
from ...request import quoted
from ..api import AsyncResource


class AsyncBatches(AsyncResource):
    async def create(self, **fields: Unpack[params.BatchCreateParams]) -> models.Batch:
        """`POST /v1/batches`: Create a batch. Its input file is validated in the background."""
        return await self._api.value(
            models.Batch, "POST", "/v1/batches", body=fields, is_created=True
        )

    async def get(self, batch_id: str) -> models.Batch:
        """`GET /v1/batches/{batch_id}`: Get a batch: its state, its counts, and its result
        files.
        """
        return await self._api.value(models.Batch, "GET", f"/v1/batches/{quoted(batch_id)}")

    async def cancel(self, batch_id: str) -> models.Batch:
        """`POST /v1/batches/{batch_id}/cancel`: Cancel a batch. It is `cancelling` until the
        lines that are being computed have ended.
        """
        return await self._api.value(models.Batch, "POST", f"/v1/batches/{quoted(batch_id)}/cancel")

    def list(
        self, *, limit: int | None = None, order: Literal["asc", "desc"] | None = None
    ) -> AsyncIterator[models.Batch]:
        """`GET /v1/batches`: List batches."""
        return self._api.pages(models.Batch, "/v1/batches", limit=limit, query={"order": order})
