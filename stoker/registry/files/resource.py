"""Files as a resource."""

from datetime import datetime

from stoker.platform.parts import ServerParts
from stoker.platform.resource import Resource, Upkeep
from stoker.platform.web.context import Platform
from stoker.registry.files import service
from stoker.registry.files.endpoints import links, router


async def _sweep(parts: ServerParts, now: datetime) -> None:
    platform = parts.get(Platform)
    await service.sweep(platform.database, platform.blobs, now)


async def _sweep_strays(parts: ServerParts, now: datetime) -> None:
    platform = parts.get(Platform)
    await service.sweep_strays(platform.database, platform.blobs, now)


RESOURCE = Resource(
    name="files",
    routers=[router],
    open_routers=[links],
    upkeep=Upkeep(shared=_sweep, strays=_sweep_strays),
)
