from dataclasses import dataclass
from typing import Annotated, Any

from stoker.jobs.runner import Runner
from stoker.web.context import Platform, part


@dataclass(frozen=True, kw_only=True)
class VideoContext(Platform):
    jobs: Runner[Any, Any]


ContextDep = Annotated[VideoContext, part(VideoContext)]
