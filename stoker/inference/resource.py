"""Calls of models as a resource."""

from dataclasses import dataclass, replace

from stoker.inference.calls import Calls, Mirror, ResponseKeeper
from stoker.inference.info import router as info
from stoker.inference.models import router as models
from stoker.inference.routes import router as calls
from stoker.platform.parts import ServerParts
from stoker.platform.resource import Resource
from stoker.platform.web.context import Platform
from stoker.registry.deployments.directory import Directory
from stoker.tenancy.usage.balances import CreditCheck


@dataclass(frozen=True)
class Mirroring:
    """Receives answered calls of deployments that have mirrors. A folder above provides it."""

    offer: Mirror


@dataclass(frozen=True)
class Keeping:
    """Stores responses. A folder above provides it."""

    keeper: ResponseKeeper


def unmirrored_calls(parts: ServerParts) -> Calls:
    """Returns calls whose answers are offered to no mirror, such as those of the mirrors."""
    return Calls(
        **vars(parts.get(Platform)), directory=parts.get(Directory), credits=parts.get(CreditCheck)
    )


def _calls(parts: ServerParts) -> Calls:
    mirroring = parts.find(Mirroring)
    keeping = parts.find(Keeping)
    return replace(
        unmirrored_calls(parts),
        mirror=mirroring.offer if mirroring else None,
        keeper=keeping.keeper if keeping else None,
    )


RESOURCE = Resource(name="inference", parts=[_calls], routers=[calls, models, info])
