"""Agents and their runs as a resource."""

from collections.abc import Collection, Sequence
from datetime import datetime

from stoker.inference.calls import Calls
from stoker.platform.jobs.runner import JobRunner
from stoker.platform.parts import ServerParts
from stoker.platform.resource import EventObjects, JobQueue, Resource, Upkeep
from stoker.platform.web.context import Platform
from stoker.store.db import Session
from stoker.store.tables.agents import Run
from stoker.tenancy.keys.keyring import Keyring
from stoker.tenancy.keys.limits import RateLimits
from stoker.workloads.agents import repository, run_service, schemas
from stoker.workloads.agents.context import AgentContext
from stoker.workloads.agents.endpoints import router
from stoker.workloads.agents.followers import Followers
from stoker.workloads.agents.journal import Journal
from stoker.workloads.agents.outbound import Outbound
from stoker.workloads.agents.work import AgentRunJob


def _context(parts: ServerParts) -> AgentContext:
    platform, followers = parts.get(Platform), Followers()
    settings = platform.settings
    return AgentContext(
        **vars(platform),
        calls=parts.get(Calls),
        keyring=parts.get(Keyring),
        rate_limits=parts.get(RateLimits),
        followers=followers,
        journal=Journal(platform.database, followers),
        outbound=Outbound(
            allowed_hosts=settings.tool_hosts, allowed_private=settings.tool_private_hosts
        ),
        jobs=JobRunner(
            platform.database,
            lease_s=settings.job_lease_s,
            at_once=settings.agent_runs_at_once,
            # A language model takes all requests into one batch: its own queue is the limit.
            share=lambda _deployment_id: settings.agent_runs_at_once,
        ),
    )


async def _forget_old(parts: ServerParts, now: datetime) -> None:
    await run_service.forget_old(parts.get(AgentContext), now)


async def _read(
    _parts: ServerParts, session: Session, ids: Collection[str]
) -> Sequence[tuple[Run, schemas.RunState]]:
    return [(row, run_service.state(row)) for row in await repository.these(session, ids)]


async def _close(parts: ServerParts) -> None:
    parts.get(AgentContext).outbound.close()


RESOURCE = Resource(
    name="agents",
    parts=[_context],
    routers=[router],
    tasks={"journal of runs": lambda parts: parts.get(AgentContext).journal.run()},
    jobs=JobQueue(
        task="runs",
        kind="agent_run",
        table=Run,
        runner=lambda parts: parts.get(AgentContext).jobs,
        work=lambda parts: AgentRunJob(parts.get(AgentContext)),
    ),
    upkeep=Upkeep(shared_hourly=_forget_old),
    catch_up=lambda parts: run_service.catch_up(parts.get(AgentContext)),
    events=EventObjects(kind="run", table=Run, read=_read),
    end_streams=lambda parts: parts.get(AgentContext).followers.end(),
    closing={"tool servers": _close},
)
