# `python -m tools.client_api` writes this file.
"""Parameters of accounts, from the OpenAPI document."""

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias, TypedDict


class AccountCreateParams(TypedDict):
    name: str


class AccountUpdateParams(TypedDict, total=False):
    name: str | None
    quotas: Mapping[str, int | None]


Scope: TypeAlias = Literal["deployment", "account", "operator"]


class KeyCreateParams(TypedDict, total=False):
    account_id: str | None
    deployment_ids: Sequence[str]
    expires_at: str | None
    name: str | None
    requests_per_minute: int | None
    scope: Scope
    tokens_per_minute: int | None


class KeyRotateParams(TypedDict, total=False):
    grace_s: float
