from dataclasses import dataclass
from typing import Annotated, Any

from stoker.deployments.directory import Directory
from stoker.jobs.runner import Runner
from stoker.web.context import Platform, part


@dataclass(frozen=True, kw_only=True)
class VideoContext(Platform):
    directory: Directory
    jobs: Runner[Any, Any]


ContextDep = Annotated[VideoContext, part(VideoContext)]
