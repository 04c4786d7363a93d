# `python -m tools.client_api` writes this file.
"""Operations of accounts, from the OpenAPI document."""

from collections.abc import AsyncIterator
from typing import Literal, Unpack

from ... import models, params
from ...request import quoted
from ..api import AsyncResource


class AsyncAccounts(AsyncResource):
    async def create(self, **fields: Unpack[params.AccountCreateParams]) -> models.Account:
        """`POST /v1/accounts`: Create an account (operators)."""
        return await self._api.value(
            models.Account, "POST", "/v1/accounts", body=fields, is_created=True
        )

    async def get(self, account_id: str) -> models.Account:
        """`GET /v1/accounts/{account_id}`: Get an account (operators)."""
        return await self._api.value(models.Account, "GET", f"/v1/accounts/{quoted(account_id)}")

    async def update(
        self, account_id: str, **fields: Unpack[params.AccountUpdateParams]
    ) -> models.Account:
        """`PATCH /v1/accounts/{account_id}`: Rename an account, or set limits that apply
        only to it (operators).
        """
        return await self._api.value(
            models.Account, "PATCH", f"/v1/accounts/{quoted(account_id)}", body=fields
        )

    async def delete(self, account_id: str) -> models.Deleted:
        """`DELETE /v1/accounts/{account_id}`: Delete an account and erase all of its data
        (operators).
        """
        return await self._api.value(models.Deleted, "DELETE", f"/v1/accounts/{quoted(account_id)}")

    def list(
        self, *, limit: int | None = None, order: Literal["asc", "desc"] | None = None
    ) -> AsyncIterator[models.Account]:
        """`GET /v1/accounts`: List all accounts (operators)."""
        return self._api.pages(models.Account, "/v1/accounts", limit=limit, query={"order": order})


class AsyncKeys(AsyncResource):
    async def create(self, **fields: Unpack[params.KeyCreateParams]) -> models.KeyWithSecret:
        """`POST /v1/api-keys`: Create an API key. Only this response shows its secret."""
        return await self._api.value(
            models.KeyWithSecret, "POST", "/v1/api-keys", body=fields, is_created=True
        )

    async def get(self, key_id: str) -> models.Key:
        """`GET /v1/api-keys/{key_id}`: Get a key, without its secret."""
        return await self._api.value(models.Key, "GET", f"/v1/api-keys/{quoted(key_id)}")

    async def update(self, key_id: str, **fields: Unpack[params.KeyUpdateParams]) -> models.Key:
        """`PATCH /v1/api-keys/{key_id}`: Change a key's rights. Its secret stays valid."""
        return await self._api.value(
            models.Key, "PATCH", f"/v1/api-keys/{quoted(key_id)}", body=fields
        )

    async def rotate(
        self, key_id: str, **fields: Unpack[params.KeyRotateParams]
    ) -> models.KeyWithSecret:
        """`POST /v1/api-keys/{key_id}/rotate`: Create a new secret for a key. The old secret
        stays valid for the grace time.
        """
        return await self._api.value(
            models.KeyWithSecret, "POST", f"/v1/api-keys/{quoted(key_id)}/rotate", body=fields
        )

    async def revoke(self, key_id: str) -> models.Deleted:
        """`DELETE /v1/api-keys/{key_id}`: Revoke a key at once, and sign out the browsers
        that were signed in with it.
        """
        return await self._api.value(models.Deleted, "DELETE", f"/v1/api-keys/{quoted(key_id)}")

    def list(
        self, *, limit: int | None = None, order: Literal["asc", "desc"] | None = None
    ) -> AsyncIterator[models.Key]:
        """`GET /v1/api-keys`: List the account's keys."""
        return self._api.pages(models.Key, "/v1/api-keys", limit=limit, query={"order": order})


class AsyncQuotas(AsyncResource):
    async def get(self) -> models.Quotas:
        """`GET /v1/quotas`: Get the account's limits and their current use."""
        return await self._api.value(models.Quotas, "GET", "/v1/quotas")
