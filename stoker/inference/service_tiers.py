"""Service tier of a call: read from its body or header, and reported with its answer."""

from collections.abc import Mapping
from typing import Any

from stoker.base.errors import InvalidRequestError
from stoker.base.fairness import Tier
from stoker.models.tasks.service_tier import AUTO, TIERS, PrioritizedRequest

TIER = "x-stoker-service-tier"
"""Header. In a request, the service tier; in a response, the tier that was used."""


def requested_tier(body: Any, headers: Mapping[str, str]) -> Tier | None:
    """Returns the tier that a request names. None if it names none.

    A tier in the body replaces that of the header. Raises `InvalidRequestError` for an unknown
    name in the header. The request's model checks the body.
    """
    name = headers.get(TIER)
    if name is not None and name not in TIERS and name != AUTO:
        names = ", ".join([AUTO, *TIERS])
        raise InvalidRequestError(f"'{TIER}' must be one of: {names}.", param=TIER)
    if isinstance(body, PrioritizedRequest) and (tier := body.prioritized_tier):
        return tier
    field: str | None = getattr(body, "service_tier", None)
    if field == "standard_only":
        # Anthropic's name.
        return Tier.DEFAULT
    if field is not None and field != AUTO:
        return TIERS[field]
    if name is None and field is None:
        return None
    return TIERS.get(name or AUTO, Tier.DEFAULT)
