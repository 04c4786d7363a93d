from typing import Literal

from pydantic import Field, model_validator

from stoker.platform.web.principal import Scope
from stoker.platform.web.schemas import RequestModel, ResponseModel, UtcString
from stoker.store.db import NO_CONTROL


class SessionCreate(RequestModel):
    key: str | None = Field(
        default=None, min_length=1, max_length=256, pattern=NO_CONTROL, description="An API key."
    )
    link: str | None = Field(
        default=None,
        min_length=1,
        max_length=256,
        pattern=NO_CONTROL,
        description="Replaces a key: the text after `#link=` in a link of POST /v1/console/links.",
    )

    @model_validator(mode="after")
    def _one(self) -> "SessionCreate":
        if (self.key is None) == (self.link is None):
            raise ValueError("give either 'key' or 'link'")
        return self


class ConsoleSession(ResponseModel):
    object: Literal["console.session"] = "console.session"
    scope: Scope = Field(description="Scope of the key that the browser signed in with.")
    account_id: str | None
    deployments: list[str] | None = Field(
        description=(
            "Ids of the deployments that the key may call; null: its scope is not limited"
            " to deployments."
        )
    )
    csrf: str = Field(description="Value that every change must send in the x-csrf-token header.")
    expires_at: UtcString


class ConsoleLink(ResponseModel):
    object: Literal["console.link"] = "console.link"
    url: str = Field(description="Link that signs in the first browser that opens it.")
    expires_at: UtcString
