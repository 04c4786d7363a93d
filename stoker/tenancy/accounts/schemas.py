from typing import Annotated, Literal

from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from stoker.platform.quotas.limits import MOST, Quota
from stoker.platform.web.schemas import RequestModel, ResponseModel, UtcString
from stoker.store.db import NO_CONTROL


class AccountCreate(RequestModel):
    name: str = Field(min_length=1, max_length=128, pattern=NO_CONTROL)


class Account(ResponseModel):
    id: str
    object: Literal["account"] = "account"
    name: str
    quotas: dict[Quota | SkipJsonSchema[str], int] = Field(
        description=(
            "Quotas that the operator has set for the account; 0: unlimited. Other quotas"
            " are the server's."
        )
    )
    created_at: UtcString


class AccountUpdate(RequestModel):
    name: str | None = Field(default=None, min_length=1, max_length=128, pattern=NO_CONTROL)
    quotas: dict[Quota, Annotated[int, Field(ge=0, le=MOST)] | None] = Field(
        default={},
        max_length=len(Quota),
        description=(
            "Limits for this account only. 0 means no limit; null restores the server's limit."
        ),
    )


class QuotaUse(ResponseModel):
    used: int
    limit: int | None = Field(description="Null: none.")


class Quotas(ResponseModel):
    object: Literal["quotas"] = "quotas"
    account_id: str
    quotas: dict[Quota, QuotaUse]
