from sqlalchemy import delete, select, update

from stoker.store.db import Session
from stoker.store.tables.imports import Import


async def get(session: Session, artifact_id: str, import_id: str) -> Import | None:
    statement = select(Import).where(Import.id == import_id, Import.artifact_id == artifact_id)
    return await session.scalar(statement)


async def forget(session: Session, artifact_id: str) -> str | None:
    """Drop what is known of an artifact's import; its id, where there was one."""
    found = await session.scalar(select(Import.id).where(Import.artifact_id == artifact_id))
    if found is not None:
        await session.execute(delete(Import).where(Import.id == found))
    return found


async def erase_token(session: Session, import_id: str) -> None:
    await session.execute(update(Import).where(Import.id == import_id).values(token=None))
