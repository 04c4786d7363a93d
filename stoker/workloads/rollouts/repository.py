from collections.abc import Sequence

from sqlalchemy import select

from stoker.platform.web.lists import Page, PageQuery, fetch_page
from stoker.store.db import Session
from stoker.store.tables.deployments import DeploymentVersion, VersionComparison


async def page(session: Session, deployment_id: str, query: PageQuery) -> Page[DeploymentVersion]:
    statement = select(DeploymentVersion).where(DeploymentVersion.deployment_id == deployment_id)
    return await fetch_page(session, statement, DeploymentVersion.id, query)


async def comparisons(
    session: Session, version_id: str, live_version_id: str
) -> Sequence[VersionComparison]:
    """Returns the counts that servers stored for a pair of versions, ordered by id."""
    statement = select(VersionComparison).where(
        VersionComparison.version_id == version_id,
        VersionComparison.live_version_id == live_version_id,
    )
    return (await session.scalars(statement.order_by(VersionComparison.id))).all()
