from dataclasses import dataclass
from typing import Annotated

from stoker.deployments.directory import Directory
from stoker.watching.broadcast import Broadcast
from stoker.watching.history import History
from stoker.web.context import Platform, part


@dataclass(frozen=True, kw_only=True)
class WatchContext(Platform):
    directory: Directory
    history: History
    broadcast: Broadcast


ContextDep = Annotated[WatchContext, part(WatchContext)]
