"""Files as a resource."""

from datetime import datetime

from stoker.platform.parts import ServerParts
from stoker.platform.resource import Resource, Upkeep
from stoker.platform.web.context import Platform
from stoker.registry.files import service, upload_endpoints, uploads
from stoker.registry.files.endpoints import links, router
from stoker.store import db


async def _recover(parts: ServerParts) -> None:
    platform = parts.get(Platform)
    if platform.database.is_sqlite:
        # No other server writes, so a killed one has left these bytes.
        await platform.blobs.sweep(db.now())


async def _sweep(parts: ServerParts, now: datetime) -> None:
    platform = parts.get(Platform)
    await service.sweep(platform.database, platform.blobs, now)
    await uploads.expire(platform.database, platform.blobs, now)


async def _sweep_strays(parts: ServerParts, now: datetime) -> None:
    platform = parts.get(Platform)
    await service.sweep_strays(platform.database, platform.blobs, now)


RESOURCE = Resource(
    name="files",
    routers=[router, upload_endpoints.router],
    open_routers=[links],
    prepare=_recover,
    upkeep=Upkeep(shared=_sweep, strays=_sweep_strays),
)
