from collections.abc import Collection, Sequence
from typing import NamedTuple

from sqlalchemy import Select, case, null, or_, select

from stoker.platform.web.lists import Page, PageQuery, fetch_page, ordered
from stoker.store.db import Session
from stoker.store.tables.deployments import Deployment, DeploymentEvent


async def get(
    session: Session, account_id: str, deployment_id: str, *, lock: bool = False
) -> Deployment | None:
    """Returns a deployment of the account. With `lock`, no other transaction can change it in the
    meantime.
    """
    query = select(Deployment).where(
        Deployment.id == deployment_id, Deployment.account_id == account_id
    )
    # SQLite has no row locks, but a writing transaction has exclusive use of the database.
    return await session.scalar(query.with_for_update() if lock else query)


async def by_model(session: Session, account_id: str, model: str) -> Deployment | None:
    return await session.scalar(
        select(Deployment).where(Deployment.model == model, Deployment.account_id == account_id)
    )


async def everything(session: Session) -> Sequence[Deployment]:
    return (await session.scalars(select(Deployment))).all()


async def page(
    session: Session, account_id: str, query: PageQuery, search: str | None = None
) -> Page[Deployment]:
    """Returns a page of the account's deployments.

    Args:
        search: text that the name of the model or pipeline contains, in upper or lower case.
    """
    return await fetch_page(session, _sought(account_id, search), Deployment.id, query)


class Wanted(NamedTuple):
    """Columns of a deployment that determine its status."""

    id: str
    desired: str
    live_version_id: str
    shares: str | None


async def wanted(
    session: Session, account_id: str, query: PageQuery, search: str | None
) -> list[Wanted]:
    """Returns these columns for all matching deployments, from `query.after` on."""
    shares = case((Deployment.merged_because.is_(None), Deployment.adapter_of), else_=null())
    statement = _sought(account_id, search).with_only_columns(
        Deployment.id, Deployment.desired, Deployment.live_version_id, shares
    )
    rows = await session.execute(ordered(statement, Deployment.id, query))
    return [Wanted(*row) for row in rows]


async def these(
    session: Session, ids: Collection[str], *, newest_first: bool = False
) -> Sequence[Deployment]:
    """Returns the existing deployments among these ids, ordered by age."""
    by_age = Deployment.id.desc() if newest_first else Deployment.id
    statement = select(Deployment).where(Deployment.id.in_(ids)).order_by(by_age)
    return (await session.scalars(statement)).all()


def _sought(account_id: str, search: str | None) -> Select[Deployment]:
    statement = select(Deployment).where(Deployment.account_id == account_id)
    if search:
        matches = (
            column.icontains(search, autoescape=True)
            for column in (Deployment.model, Deployment.pipeline)
        )
        statement = statement.where(or_(*matches))
    return statement


async def events(session: Session, deployment_id: str, query: PageQuery) -> Page[DeploymentEvent]:
    statement = select(DeploymentEvent).where(DeploymentEvent.deployment_id == deployment_id)
    return await fetch_page(session, statement, DeploymentEvent.id, query)
