from collections.abc import Collection, Sequence

from sqlalchemy import select

from stoker.store.db import Session
from stoker.store.tables.agents import Run
from stoker.store.tables.artifacts import Artifact
from stoker.store.tables.deployments import Deployment
from stoker.store.tables.imports import Import
from stoker.store.tables.videos import Video


async def deployments(session: Session, ids: Collection[str]) -> Sequence[Deployment]:
    return (await session.scalars(select(Deployment).where(Deployment.id.in_(ids)))).all()


async def artifacts(session: Session, ids: Collection[str]) -> Sequence[Artifact]:
    return (await session.scalars(select(Artifact).where(Artifact.id.in_(ids)))).all()


async def videos(session: Session, ids: Collection[str]) -> Sequence[Video]:
    return (await session.scalars(select(Video).where(Video.id.in_(ids)))).all()


async def runs(session: Session, ids: Collection[str]) -> Sequence[Run]:
    return (await session.scalars(select(Run).where(Run.id.in_(ids)))).all()


async def imported_by(session: Session, upload_ids: Collection[str]) -> Sequence[str]:
    """Returns the artifacts with hub imports that use these upload sessions."""
    query = select(Import.artifact_id).where(Import.upload_id.in_(upload_ids))
    return (await session.scalars(query)).all()
