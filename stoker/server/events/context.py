from dataclasses import dataclass
from typing import Annotated

from stoker.platform.web.context import Platform, part
from stoker.registry.deployments.directory import Directory
from stoker.server.events.broadcast import Broadcast
from stoker.server.events.history import History


@dataclass(frozen=True, kw_only=True)
class WatchContext(Platform):
    directory: Directory
    history: History
    broadcast: Broadcast


ContextDep = Annotated[WatchContext, part(WatchContext)]
