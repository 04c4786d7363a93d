from sqlalchemy import select

from stoker.platform.web.lists import Page, PageQuery, fetch_page
from stoker.store.db import Session
from stoker.store.tables.deployments import DeploymentVersion


async def page(session: Session, deployment_id: str, query: PageQuery) -> Page[DeploymentVersion]:
    statement = select(DeploymentVersion).where(DeploymentVersion.deployment_id == deployment_id)
    return await fetch_page(session, statement, DeploymentVersion.id, query)
