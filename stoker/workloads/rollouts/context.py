from dataclasses import dataclass
from typing import Annotated

from stoker.inference.calls import Calls
from stoker.platform.web.context import part
from stoker.registry.deployments.context import DeploymentContext
from stoker.workloads.evaluation.checks.judges import Judges
from stoker.workloads.rollouts.mirroring import Mirrors


@dataclass(frozen=True, kw_only=True)
class VersionContext(DeploymentContext):
    calls: Calls
    judges: Judges
    mirrors: Mirrors


ContextDep = Annotated[VersionContext, part(VersionContext)]
