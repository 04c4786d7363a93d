# `python -m tools.client_api` writes this file.
"""Responses of accounts, from the OpenAPI document."""

from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec


class Account(msgspec.Struct, kw_only=True):
    created_at: str
    id: str
    name: str
    object: str = "account"
    quotas: dict[str, int]
    """Quotas that the operator has set for the account; 0: unlimited. Other quotas are the
    server's.
    """


if TYPE_CHECKING:
    Scope: TypeAlias = Literal["deployment", "account", "operator"] | str
else:
    Scope = str


class Key(msgspec.Struct, kw_only=True):
    account_id: str | None
    created_at: str
    deployment_ids: list[str]
    expires_at: str | None
    id: str
    last_used_at: str | None
    may_prioritize: bool
    name: str | None
    object: str = "api_key"
    public_id: str
    """Middle part of the key, safe to log."""
    requests_per_minute: int | None
    scope: Scope
    tokens_per_minute: int | None


class KeyWithSecret(msgspec.Struct, kw_only=True):
    account_id: str | None
    created_at: str
    deployment_ids: list[str]
    expires_at: str | None
    id: str
    key: str
    """The complete key. It is shown only once."""
    last_used_at: str | None
    may_prioritize: bool
    name: str | None
    object: str = "api_key"
    public_id: str
    """Middle part of the key, safe to log."""
    requests_per_minute: int | None
    scope: Scope
    tokens_per_minute: int | None


class QuotaUse(msgspec.Struct, kw_only=True):
    limit: int | None
    """Null: none."""
    used: int


class Quotas(msgspec.Struct, kw_only=True):
    account_id: str
    object: str = "quotas"
    quotas: dict[str, QuotaUse]
