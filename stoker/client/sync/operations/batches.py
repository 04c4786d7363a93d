# `python -m tools.client_api` writes this file from its asynchronous twin.
"""Operations of batches, from the OpenAPI document."""

from collections.abc import Iterator
from typing import Literal, Unpack

from ... import models, params
from ...request import quoted
from ..api import Resource


class Batches(Resource):
    def create(self, **fields: Unpack[params.BatchCreateParams]) -> models.Batch:
        """`POST /v1/batches`: Create a batch. Its input file is validated in the background."""
        return self._api.value(models.Batch, "POST", "/v1/batches", body=fields, is_created=True)

    def get(self, batch_id: str) -> models.Batch:
        """`GET /v1/batches/{batch_id}`: Get a batch: its state, its counts, and its result
        files.
        """
        return self._api.value(models.Batch, "GET", f"/v1/batches/{quoted(batch_id)}")

    def cancel(self, batch_id: str) -> models.Batch:
        """`POST /v1/batches/{batch_id}/cancel`: Cancel a batch. It is `cancelling` until the
        lines that are being computed have ended.
        """
        return self._api.value(models.Batch, "POST", f"/v1/batches/{quoted(batch_id)}/cancel")

    def list(
        self, *, limit: int | None = None, order: Literal["asc", "desc"] | None = None
    ) -> Iterator[models.Batch]:
        """`GET /v1/batches`: List batches."""
        return self._api.pages(models.Batch, "/v1/batches", limit=limit, query={"order": order})
