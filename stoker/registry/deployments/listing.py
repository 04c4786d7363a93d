"""Lists of deployments, by what they are called and how they do."""

import asyncio

from stoker.platform.web.lists import Page, PageQuery
from stoker.registry.deployments import describing, repository
from stoker.registry.deployments.context import DeploymentContext
from stoker.runtime.observed import Status
from stoker.store.db import Session
from stoker.store.tables.deployments import Deployment

TURN = 500
"""Others have their turn after so many that were looked at."""


async def page(
    session: Session,
    context: DeploymentContext,
    account_id: str,
    query: PageQuery,
    *,
    search: str | None,
    status: Status | None,
) -> Page[Deployment]:
    """Deployments of the account; no table knows their status, so those of one are looked for."""
    if status is None:
        return await repository.page(session, account_id, query, search)
    found: list[str] = []
    for number, one in enumerate(await repository.wanted(session, account_id, query, search)):
        if number % TURN == 0:
            await asyncio.sleep(0)
        if describing.observed(context, one).status is status:
            found.append(one.id)
        if len(found) > query.limit:
            break
    rows = await repository.these(session, found[: query.limit], newest_first=query.order == "desc")
    return Page(rows, len(found) > query.limit)
