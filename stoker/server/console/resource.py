"""The console as a resource."""

from datetime import datetime

from stoker.platform.parts import ServerParts
from stoker.platform.resource import Resource, Upkeep
from stoker.platform.web.context import Platform
from stoker.server.console import service
from stoker.server.console.attempts import Attempts
from stoker.server.console.built import Pages
from stoker.server.console.context import ConsoleContext
from stoker.server.console.endpoints import links, router
from stoker.server.console.pages import router as pages
from stoker.tenancy.keys.keyring import Keyring
from stoker.tenancy.keys.sessions import Sessions


def _context(parts: ServerParts) -> ConsoleContext:
    return ConsoleContext(
        **vars(parts.get(Platform)),
        keyring=parts.get(Keyring),
        sessions=parts.get(Sessions),
        attempts=Attempts(),
        pages=Pages(),
    )


async def _forget_expired(parts: ServerParts, now: datetime) -> None:
    await service.forget_expired(parts.get(ConsoleContext), now)


RESOURCE = Resource(
    name="console",
    parts=[_context],
    routers=[links],
    open_routers=[router, pages],
    upkeep=Upkeep(shared=_forget_expired),
)
