"""Lists deployments by search text and status."""

import asyncio

from stoker.platform.web.lists import Page, PageQuery
from stoker.registry.deployments import describing, repository
from stoker.registry.deployments.context import DeploymentContext
from stoker.runtime.observed import Status
from stoker.store.db import Session
from stoker.store.tables.deployments import Deployment

TURN = 500
"""Number of checked deployments after which other tasks get a turn."""


async def page(
    session: Session,
    context: DeploymentContext,
    account_id: str,
    query: PageQuery,
    *,
    search: str | None,
    status: Status | None,
) -> Page[Deployment]:
    """Returns deployments of the account. No table stores the status, so a status filter checks
    each deployment.
    """
    if status is None:
        return await repository.page(session, account_id, query, search)
    matching_ids: list[str] = []
    for number, candidate in enumerate(await repository.wanted(session, account_id, query, search)):
        if number % TURN == 0:
            await asyncio.sleep(0)
        if describing.observed(context, candidate).status is status:
            matching_ids.append(candidate.id)
        if len(matching_ids) > query.limit:
            break
    rows = await repository.these(
        session, matching_ids[: query.limit], newest_first=query.order == "desc"
    )
    return Page(rows, len(matching_ids) > query.limit)
