"""The field `service_tier` of requests in OpenAI's conventions."""

from typing import Literal

from pydantic import BaseModel, Field

ServiceTier = Literal["auto", "default", "flex", "priority", "fast"]


class TieredRequest(BaseModel):
    """Base of requests that name their service tier in the body."""

    service_tier: ServiceTier | None = Field(
        default=None,
        description="`flex`: background work, which runs when no other call waits. `priority`, or "
        "`fast`: goes first, if the key may use it. `auto`: the tier of the header "
        "`x-stoker-service-tier`, else `default`.",
    )
