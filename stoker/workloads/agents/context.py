"""Shared services for code that works on runs."""

from dataclasses import dataclass
from typing import Annotated, Any

from stoker.inference.calls import Calls
from stoker.platform.jobs.runner import JobRunner
from stoker.platform.web.context import Platform, part
from stoker.store.tables.agents import Run
from stoker.tenancy.keys.keyring import Keyring
from stoker.tenancy.keys.limits import RateLimits
from stoker.workloads.agents.followers import Followers
from stoker.workloads.agents.journal import Journal
from stoker.workloads.agents.outbound import Outbound


@dataclass(frozen=True, kw_only=True)
class AgentContext(Platform):
    calls: Calls
    keyring: Keyring
    rate_limits: RateLimits
    jobs: JobRunner[Run, Any]
    journal: Journal
    followers: Followers
    outbound: Outbound


ContextDep = Annotated[AgentContext, part(AgentContext)]
