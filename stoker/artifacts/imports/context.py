from dataclasses import dataclass
from typing import Annotated, Any

from stoker.hub.client import Hub
from stoker.jobs.runner import Runner
from stoker.web.context import Platform, part


@dataclass(frozen=True, kw_only=True)
class ImportContext(Platform):
    hub: Hub
    jobs: Runner[Any, Any]


ContextDep = Annotated[ImportContext, part(ImportContext)]
