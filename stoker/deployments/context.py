from dataclasses import dataclass
from typing import Annotated

from stoker.deployments.directory import Directory
from stoker.deployments.folders import ModelFolders
from stoker.web.context import Platform, part


@dataclass(frozen=True, kw_only=True)
class DeploymentContext(Platform):
    directory: Directory
    folders: ModelFolders


ContextDep = Annotated[DeploymentContext, part(DeploymentContext)]
