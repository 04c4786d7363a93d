from dataclasses import dataclass
from typing import Annotated, Any

from stoker.deployments.directory import Directory
from stoker.deployments.folders import ModelFolders
from stoker.jobs.runner import Runner
from stoker.web.context import Platform, part


@dataclass(frozen=True, kw_only=True)
class DeploymentContext(Platform):
    directory: Directory
    folders: ModelFolders
    preparing: Runner[Any, Any]
    """Of versions that may take over."""


ContextDep = Annotated[DeploymentContext, part(DeploymentContext)]
