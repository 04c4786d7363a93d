from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from stoker.agents.context import AgentContext
from stoker.deployments.context import DeploymentContext
from stoker.jobs.runner import Runner
from stoker.keys.sessions import Sessions
from stoker.usage.balances import Credits
from stoker.watching.broadcast import Broadcast
from stoker.web.context import Platform, part


@dataclass(frozen=True, kw_only=True)
class ErasureContext(Platform):
    """What keeps something of an account in memory, beside the platform."""

    deployments: DeploymentContext
    agents: AgentContext
    sessions: Sessions
    credits: Credits
    broadcast: Broadcast
    runners: Sequence[Runner[Any, Any]]


ContextDep = Annotated[ErasureContext, part(ErasureContext)]
