from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from stoker.platform.web.principal import Scope
from stoker.platform.web.schemas import RequestModel, ResponseModel, UtcString
from stoker.store.db import NO_CONTROL

MAX_GRACE_S = 30 * 24 * 3600
MAX_REQUESTS = 10_000_000
MAX_TOKENS = 1_000_000_000


class KeyCreate(RequestModel):
    scope: Scope = Field(default=Scope.DEPLOYMENT, description="Rights of the key.")
    deployment_ids: list[Annotated[str, Field(max_length=64, pattern=NO_CONTROL)]] = Field(
        default=[],
        max_length=100,
        description="With scope `deployment`: the deployments it may call, at least one.",
    )
    account_id: str | None = Field(
        default=None,
        max_length=64,
        pattern=NO_CONTROL,
        description="Operators only: the account the key belongs to.",
    )
    name: str | None = Field(default=None, min_length=1, max_length=128, pattern=NO_CONTROL)
    expires_at: datetime | None = Field(
        default=None,
        description="Expiry, ISO 8601 with a time zone. Default: the key never expires.",
    )
    requests_per_minute: int | None = Field(
        default=None,
        ge=1,
        le=MAX_REQUESTS,
        description="Maximum requests per minute. Default: unlimited.",
    )
    tokens_per_minute: int | None = Field(
        default=None,
        ge=1,
        le=MAX_TOKENS,
        description="Maximum tokens per minute that its calls may read and write, counted when "
        "they end. Default: unlimited.",
    )
    may_prioritize: bool = Field(
        default=False, description="True: its calls may use the service tier `priority`."
    )


class KeyUpdate(RequestModel):
    may_prioritize: bool = Field(description="True: its calls may use the service tier `priority`.")


class KeyRotate(RequestModel):
    grace_s: float = Field(
        default=24 * 3600,
        ge=0,
        le=MAX_GRACE_S,
        description="Time for which the old secret stays valid, seconds.",
    )


class Key(ResponseModel):
    id: str
    object: Literal["api_key"] = "api_key"
    public_id: str = Field(description="Middle part of the key, safe to log.")
    scope: Scope | SkipJsonSchema[str]
    account_id: str | None
    deployment_ids: list[str]
    name: str | None
    created_at: UtcString
    expires_at: UtcString | None
    requests_per_minute: int | None
    tokens_per_minute: int | None
    may_prioritize: bool
    last_used_at: UtcString | None


class KeyWithSecret(Key):
    key: str = Field(description="The complete key. It is shown only once.", examples=["sk-…"])
