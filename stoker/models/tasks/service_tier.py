"""The fields `service_tier` and `priority` of requests in OpenAI's conventions."""

from typing import Literal, Self

from pydantic import BaseModel, Field, model_validator

from stoker.base.fairness import Tier

ServiceTier = Literal["auto", "default", "flex", "priority", "fast"]
TIERS = {
    "default": Tier.DEFAULT,
    "flex": Tier.FLEX,
    "priority": Tier.PRIORITY,
    "fast": Tier.PRIORITY,
}
"""Maps the names of tiers, without `auto`, to the tiers."""
AUTO = "auto"


class TieredRequest(BaseModel):
    """Base of requests that name their service tier in the body."""

    service_tier: ServiceTier | None = Field(
        default=None,
        description="`flex`: background work, which runs when no other call waits. `priority`, or "
        "`fast`: goes first, if the key may use it. `auto`: the tier of the header "
        "`x-stoker-service-tier`, else `default`.",
    )


class PrioritizedRequest(TieredRequest):
    """Base of requests that may name their service tier as a number."""

    priority: int | None = Field(
        default=None,
        ge=-(2**31),
        le=2**31 - 1,
        description="vLLM's number of the service tier. Above 0: `flex`. 0: `default`. Below 0: "
        "`priority`, if the key may use it.",
    )

    @property
    def prioritized_tier(self) -> Tier | None:
        """Service tier that `priority` stands for. None if it is not given."""
        if self.priority is None:
            return None
        if self.priority > 0:
            return Tier.FLEX
        return Tier.PRIORITY if self.priority < 0 else Tier.DEFAULT

    @model_validator(mode="after")
    def _agreeing(self) -> Self:
        named, tier = self.service_tier, self.prioritized_tier
        if tier and named and named != AUTO and TIERS[named] is not tier:
            raise ValueError(
                f"'priority' {self.priority} is the service tier '{tier}', but 'service_tier' is "
                f"'{named}': send one of them"
            )
        return self
