"""Service tier of a call: read from its body or header, and reported with its answer."""

from collections.abc import Mapping
from typing import Any

from stoker.base.errors import InvalidRequestError
from stoker.base.fairness import Tier

TIER = "x-stoker-service-tier"
"""Header. In a request, the service tier; in a response, the tier that was used."""
_AUTO = "auto"
_TIERS = {
    "default": Tier.DEFAULT,
    "flex": Tier.FLEX,
    "priority": Tier.PRIORITY,
    "fast": Tier.PRIORITY,
}


def requested_tier(body: Any, headers: Mapping[str, str]) -> Tier | None:
    """Returns the tier that a request names. None if it names none.

    A tier in the body replaces that of the header. Raises `InvalidRequestError` for an unknown
    name in the header. The request's model checks the body.
    """
    name = headers.get(TIER)
    if name is not None and name not in _TIERS and name != _AUTO:
        names = ", ".join([_AUTO, *_TIERS])
        raise InvalidRequestError(f"'{TIER}' must be one of: {names}.", param=TIER)
    field: str | None = getattr(body, "service_tier", None)
    if field == "standard_only":
        # Anthropic's name.
        return Tier.DEFAULT
    if field is not None and field != _AUTO:
        return _TIERS[field]
    if name is None and field is None:
        return None
    return _TIERS.get(name or _AUTO, Tier.DEFAULT)
