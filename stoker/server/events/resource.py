"""Event streams and statistics as a resource."""

from stoker.platform.parts import ServerParts
from stoker.platform.resource import Resource
from stoker.platform.web.context import Platform
from stoker.registry.deployments.directory import Directory
from stoker.server.events.broadcast import Broadcast
from stoker.server.events.context import WatchContext
from stoker.server.events.endpoints import router
from stoker.server.events.history import History
from stoker.server.events.objects import Shown


def _history(parts: ServerParts) -> History:
    return History(parts.get(Directory), parts.get(Platform).runtime)


def _broadcast(parts: ServerParts) -> Broadcast:
    return Broadcast(parts.get(Platform), parts.get(Directory), parts.get(History), Shown(parts))


def _context(parts: ServerParts) -> WatchContext:
    return WatchContext(
        **vars(parts.get(Platform)),
        directory=parts.get(Directory),
        history=parts.get(History),
        broadcast=parts.get(Broadcast),
    )


RESOURCE = Resource(
    name="events",
    parts=[_history, _broadcast, _context],
    routers=[router],
    tasks={"history of deployments": lambda parts: parts.get(History).run()},
    listeners=lambda parts: [parts.get(History)],
    end_streams=lambda parts: parts.get(Broadcast).end(),
)
