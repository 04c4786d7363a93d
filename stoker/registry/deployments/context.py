from dataclasses import dataclass
from typing import Annotated, Any

from stoker.platform.jobs.runner import JobRunner
from stoker.platform.web.context import Platform, part
from stoker.registry.deployments.directory import Directory
from stoker.registry.deployments.folders import ModelFolders


@dataclass(frozen=True, kw_only=True)
class DeploymentContext(Platform):
    directory: Directory
    folders: ModelFolders
    preparing: JobRunner[Any, Any]
    """Runner of the jobs that prepare versions which may take over."""


ContextDep = Annotated[DeploymentContext, part(DeploymentContext)]
