from pathlib import Path

from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection

from stoker.store.db import Base, Database
from stoker.store.tables.metadata import TABLES


async def test_migrations_match_the_models(tmp_path: Path):
    def differences(connection: Connection) -> list[object]:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        return compare_metadata(context, Base.metadata)

    assert {table.__tablename__ for table in TABLES} == set(Base.metadata.tables)
    database = Database(f"sqlite+aiosqlite:///{tmp_path}/stoker.db")
    try:
        await database.migrate()
        async with database.engine.connect() as connection:
            assert await connection.run_sync(differences) == []
    finally:
        await database.close()
