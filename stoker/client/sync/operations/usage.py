# `python -m tools.client_api` writes this file from its asynchronous twin.
"""Operations of usage, from the OpenAPI document."""

from collections.abc import Iterator, Sequence
from typing import Literal, Unpack

from ... import models, params
from ...request import quoted
from ..api import Resource


class Usage(Resource):
    def get(
        self,
        *,
        start: str | None = None,
        end: str | None = None,
        group_by: str | None = None,
        deployment_id: Sequence[str] | None = None,
        limit: int | None = None,
        page: str | None = None,
    ) -> models.UsageReport:
        """`GET /v1/usage`: Get the account's usage, summed by deployment, version, key,
        tier, day and hour (UTC), as JSON or CSV.
        """
        return self._api.value(
            models.UsageReport,
            "GET",
            "/v1/usage",
            query={
                "start": start,
                "end": end,
                "group_by": group_by,
                "deployment_id": deployment_id,
                "limit": limit,
                "page": page,
            },
        )

    def events(
        self,
        *,
        start: str | None = None,
        end: str | None = None,
        deployment_id: str | None = None,
        type: Literal["memory", "flex", "storage", "calls"] | None = None,
        limit: int | None = None,
        order: Literal["asc", "desc"] | None = None,
    ) -> Iterator[models.UsageEvent]:
        """`GET /v1/usage/events`: List the events behind the sums. Each covers an hour of a
        worker, an artifact or a deployment.
        """
        return self._api.pages(
            models.UsageEvent,
            "/v1/usage/events",
            limit=limit,
            query={
                "start": start,
                "end": end,
                "deployment_id": deployment_id,
                "type": type,
                "order": order,
            },
        )


class Credits(Resource):
    def get(self) -> models.Credits:
        """`GET /v1/credits`: Get the account's balance and the current prices."""
        return self._api.value(models.Credits, "GET", "/v1/credits")

    def transfers(
        self, *, limit: int | None = None, order: Literal["asc", "desc"] | None = None
    ) -> Iterator[models.Transfer]:
        """`GET /v1/credits/transfers`: List the account's grants and charges."""
        return self._api.pages(
            models.Transfer, "/v1/credits/transfers", limit=limit, query={"order": order}
        )

    def grant(self, account_id: str, **fields: Unpack[params.GrantCreateParams]) -> models.Transfer:
        """`POST /v1/accounts/{account_id}/credits`: Grant credit to an account (operators)."""
        return self._api.value(
            models.Transfer,
            "POST",
            f"/v1/accounts/{quoted(account_id)}/credits",
            body=fields,
            is_created=True,
        )


class Prices(Resource):
    def create(self, **fields: Unpack[params.PriceCreateParams]) -> models.Price:
        """`POST /v1/prices`: Set prices from a full hour on (operators). Earlier usage keeps
        its price.
        """
        return self._api.value(models.Price, "POST", "/v1/prices", body=fields, is_created=True)

    def list(
        self, *, limit: int | None = None, order: Literal["asc", "desc"] | None = None
    ) -> Iterator[models.Price]:
        """`GET /v1/prices`: List the versions of the price list."""
        return self._api.pages(models.Price, "/v1/prices", limit=limit, query={"order": order})
