from dataclasses import dataclass
from typing import Annotated, Any

from stoker.platform.jobs.runner import Runner
from stoker.platform.web.context import Platform, part
from stoker.registry.deployments.directory import Directory


@dataclass(frozen=True, kw_only=True)
class VideoContext(Platform):
    directory: Directory
    jobs: Runner[Any, Any]


ContextDep = Annotated[VideoContext, part(VideoContext)]
