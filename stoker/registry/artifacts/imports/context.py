from dataclasses import dataclass
from typing import Annotated, Any

from stoker.platform.jobs.runner import JobRunner
from stoker.platform.web.context import Platform, part
from stoker.registry.hub.client import Hub


@dataclass(frozen=True, kw_only=True)
class ImportContext(Platform):
    hub: Hub
    jobs: JobRunner[Any, Any]


ContextDep = Annotated[ImportContext, part(ImportContext)]
