from sqlalchemy import delete, select, update

from stoker.store.db import Session
from stoker.store.tables.imports import Import


async def get(session: Session, artifact_id: str, import_id: str) -> Import | None:
    statement = select(Import).where(Import.id == import_id, Import.artifact_id == artifact_id)
    return await session.scalar(statement)


async def forget(session: Session, artifact_id: str) -> str | None:
    """Deletes the record of an artifact's import. Returns its id, or None if the artifact has no
    import.
    """
    import_id = await session.scalar(select(Import.id).where(Import.artifact_id == artifact_id))
    if import_id is not None:
        await session.execute(delete(Import).where(Import.id == import_id))
    return import_id


async def erase_token(session: Session, import_id: str) -> None:
    await session.execute(update(Import).where(Import.id == import_id).values(token=None))
