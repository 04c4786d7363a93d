from collections.abc import Collection, Sequence

from sqlalchemy import select

from stoker.store.db import Session
from stoker.store.tables.deployments import Deployment, DeploymentEvent
from stoker.web.lists import Page, PageQuery, fetch_page


async def get(
    session: Session, account_id: str, deployment_id: str, *, lock: bool = False
) -> Deployment | None:
    """A deployment of the account; with `lock`, no other transaction changes it meanwhile."""
    query = select(Deployment).where(
        Deployment.id == deployment_id, Deployment.account_id == account_id
    )
    # SQLite knows no row locks; there a transaction that writes has the database to itself.
    return await session.scalar(query.with_for_update() if lock else query)


async def by_model(session: Session, account_id: str, model: str) -> Deployment | None:
    return await session.scalar(
        select(Deployment).where(Deployment.model == model, Deployment.account_id == account_id)
    )


async def everything(session: Session) -> Sequence[Deployment]:
    return (await session.scalars(select(Deployment))).all()


async def these(session: Session, ids: Collection[str]) -> Sequence[Deployment]:
    """Those of these that there are, the oldest first."""
    statement = select(Deployment).where(Deployment.id.in_(ids)).order_by(Deployment.id)
    return (await session.scalars(statement)).all()


async def page(session: Session, account_id: str, query: PageQuery) -> Page[Deployment]:
    statement = select(Deployment).where(Deployment.account_id == account_id)
    return await fetch_page(session, statement, Deployment.id, query)


async def events(session: Session, deployment_id: str, query: PageQuery) -> Page[DeploymentEvent]:
    statement = select(DeploymentEvent).where(DeploymentEvent.deployment_id == deployment_id)
    return await fetch_page(session, statement, DeploymentEvent.id, query)
