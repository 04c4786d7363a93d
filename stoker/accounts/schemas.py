from typing import Literal

from pydantic import Field

from stoker.store.db import NO_CONTROL
from stoker.web.schemas import RequestModel, ResponseModel, UtcString


class AccountCreate(RequestModel):
    name: str = Field(min_length=1, max_length=128, pattern=NO_CONTROL)


class Account(ResponseModel):
    id: str
    object: Literal["account"] = "account"
    name: str
    created_at: UtcString
