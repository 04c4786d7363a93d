from dataclasses import dataclass
from typing import Annotated

from stoker.checks.judges import Judges
from stoker.deployments.context import DeploymentContext
from stoker.inference.call import Calls
from stoker.versions.mirroring import Mirrors
from stoker.web.context import part


@dataclass(frozen=True, kw_only=True)
class VersionContext(DeploymentContext):
    calls: Calls
    judges: Judges
    mirrors: Mirrors


ContextDep = Annotated[VersionContext, part(VersionContext)]
