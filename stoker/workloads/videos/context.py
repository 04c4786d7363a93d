from dataclasses import dataclass
from typing import Annotated, Any

from stoker.inference.calls import Calls
from stoker.platform.jobs.runner import JobRunner
from stoker.platform.web.context import Platform, part


@dataclass(frozen=True, kw_only=True)
class VideoContext(Platform):
    calls: Calls
    jobs: JobRunner[Any, Any]


ContextDep = Annotated[VideoContext, part(VideoContext)]
