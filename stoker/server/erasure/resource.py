"""Deletion of accounts as a resource."""

from stoker.platform.parts import ServerParts
from stoker.platform.resource import Resource, Resources
from stoker.platform.web.context import Platform
from stoker.registry.deployments.context import DeploymentContext
from stoker.server.erasure import service
from stoker.server.erasure.context import ErasureContext
from stoker.server.erasure.endpoints import router
from stoker.server.events.broadcast import Broadcast
from stoker.tenancy.keys.sessions import Sessions
from stoker.tenancy.usage.balances import CreditCheck
from stoker.workloads.agents.context import AgentContext


def _context(parts: ServerParts) -> ErasureContext:
    return ErasureContext(
        **vars(parts.get(Platform)),
        deployments=parts.get(DeploymentContext),
        agents=parts.get(AgentContext),
        sessions=parts.get(Sessions),
        credits=parts.get(CreditCheck),
        broadcast=parts.get(Broadcast),
        runners=[jobs.runner(parts) for jobs in parts.get(Resources).jobs],
    )


RESOURCE = Resource(
    name="erasure",
    parts=[_context],
    routers=[router],
    tasks={"deletions of accounts": lambda parts: service.run(parts.get(ErasureContext))},
)
