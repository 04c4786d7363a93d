# `python -m tools.client_api` writes this file.
"""Parameters of accounts, from the OpenAPI document."""

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias, TypedDict


class AccountCreateParams(TypedDict):
    name: str


class AccountUpdateParams(TypedDict, total=False):
    name: str | None
    quotas: Mapping[str, int | None]
    """Limits for this account only. 0 means no limit; null restores the server's limit."""


Scope: TypeAlias = Literal["deployment", "account", "operator"]


class KeyCreateParams(TypedDict, total=False):
    account_id: str | None
    """Operators only: the account the key belongs to."""
    deployment_ids: Sequence[str]
    """With scope `deployment`: the deployments it may call, at least one."""
    expires_at: str | None
    """Expiry, ISO 8601 with a time zone. Default: the key never expires."""
    may_prioritize: bool
    """True: its calls may use the service tier `priority`."""
    name: str | None
    requests_per_minute: int | None
    """Maximum requests per minute. Default: unlimited."""
    scope: Scope
    """Rights of the key."""
    tokens_per_minute: int | None
    """Maximum tokens per minute that its calls may read and write, counted when they end.
    Default: unlimited.
    """


class KeyRotateParams(TypedDict, total=False):
    grace_s: float
    """Time for which the old secret stays valid, seconds."""


class KeyUpdateParams(TypedDict):
    may_prioritize: bool
    """True: its calls may use the service tier `priority`."""
