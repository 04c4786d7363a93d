"""Stored responses as a resource."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from stoker.inference.calls import Calls
from stoker.inference.resource import Keeping
from stoker.platform.jobs.runner import JobRunner
from stoker.platform.parts import ServerParts
from stoker.platform.resource import JobQueue, Resource, Upkeep
from stoker.platform.web import idempotency
from stoker.platform.web.context import Platform
from stoker.store.tables.responses import StoredResponse
from stoker.workloads.responses import repository
from stoker.workloads.responses.endpoints import ResponseContext, router
from stoker.workloads.responses.keeper import StoredResponses
from stoker.workloads.responses.work import AnsweredResponse, BackgroundResponse


def _context(parts: ServerParts) -> ResponseContext:
    platform = parts.get(Platform)
    at_once = platform.settings.agent_runs_at_once
    runner: JobRunner[StoredResponse, AnsweredResponse] = JobRunner(
        platform.database,
        lease_s=platform.settings.job_lease_s,
        at_once=at_once,
        # A language model takes all requests into one batch: its own queue is the limit.
        share=lambda _deployment_id: at_once,
    )
    keeper = StoredResponses(platform, runner)
    return ResponseContext(**vars(platform), jobs=runner, keeper=keeper)


def _keeping(parts: ServerParts) -> Keeping:
    return Keeping(parts.get(ResponseContext).keeper)


async def _forget_of_keys(parts: ServerParts, _now: datetime) -> None:
    """Deletes the responses of revoked keys."""
    async with parts.get(Platform).database.reading() as session:
        ids = await repository.of_revoked_keys(session)
    await _delete(parts, ids)


async def _forget_old(parts: ServerParts, now: datetime) -> None:
    platform = parts.get(Platform)
    before = now - timedelta(days=platform.settings.response_retention_days)
    async with platform.database.reading() as session:
        ids = await repository.older(session, before)
    await _delete(parts, ids)


async def _delete(parts: ServerParts, ids: Sequence[str]) -> None:
    if not ids:
        return
    context = parts.get(ResponseContext)
    async with context.database.transaction() as session:
        await idempotency.erase(session, ids)
        await repository.delete_these(session, ids)
    for response_id in ids:
        context.jobs.cancel(response_id)
    await context.database.scrub()


RESOURCE = Resource(
    name="responses",
    parts=[_context, _keeping],
    routers=[router],
    jobs=JobQueue(
        task="responses",
        kind="response",
        table=StoredResponse,
        runner=lambda parts: parts.get(ResponseContext).jobs,
        work=lambda parts: BackgroundResponse(parts.get(Calls)),
    ),
    upkeep=Upkeep(shared=_forget_of_keys, shared_hourly=_forget_old),
)
