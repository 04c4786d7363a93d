from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from stoker.platform.jobs.runner import JobRunner
from stoker.platform.web.context import Platform, part
from stoker.registry.deployments.context import DeploymentContext
from stoker.server.events.broadcast import Broadcast
from stoker.tenancy.keys.sessions import Sessions
from stoker.tenancy.usage.balances import CreditCheck
from stoker.workloads.agents.context import AgentContext


@dataclass(frozen=True, kw_only=True)
class ErasureContext(Platform):
    """Services that hold data of an account in memory, in addition to the platform."""

    deployments: DeploymentContext
    agents: AgentContext
    sessions: Sessions
    credits: CreditCheck
    broadcast: Broadcast
    runners: Sequence[JobRunner[Any, Any]]


ContextDep = Annotated[ErasureContext, part(ErasureContext)]
