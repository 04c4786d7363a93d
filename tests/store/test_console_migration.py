"""Keys from before the migration can create browser sessions afterwards. Deleting a key deletes its
sessions.
"""

from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, text

from stoker.store import migrations
from stoker.store.db import Database

INSERTS = (
    "INSERT INTO accounts (id, name, created_at) VALUES ('acct_1', 'a', '2026-01-01 00:00:00')",
    """
    INSERT INTO api_keys (
        id, public_id, secret_sha256, scope, account_id, deployment_ids, created_at
    ) VALUES ('key_1', 'abc', x'00', 'account', 'acct_1', '[]', '2026-01-01 00:00:00')
    """,
)
OPENED = """
INSERT INTO {table} (token_sha256, key_id, secret_sha256, created_at, expires_at)
VALUES (x'01', 'key_1', x'00', '2026-01-01 00:00:00', '2026-01-01 12:00:00')
"""


async def test_keys_of_before_have_sessions_and_links(tmp_path: Path) -> None:
    database = Database(f"sqlite+aiosqlite:///{tmp_path}/stoker.db")

    def before(connection: Connection) -> None:
        config = Config()
        config.set_main_option("script_location", str(Path(migrations.__file__).parent))
        config.attributes["connection"] = connection
        command.upgrade(config, "0012")
        for insert in INSERTS:
            connection.execute(text(insert))

    try:
        async with database.engine.begin() as connection:
            await connection.run_sync(before)
        await database.migrate()
        async with database.engine.begin() as connection:
            keys = (await connection.execute(text("SELECT id, public_id FROM api_keys"))).all()
            for table in ("console_sessions", "console_links"):
                await connection.execute(text(OPENED.format(table=table)))
            await connection.execute(text("DELETE FROM api_keys"))
            counts = [
                (await connection.execute(text(f"SELECT count(*) FROM {table}"))).scalar_one()
                for table in ("console_sessions", "console_links")
            ]
    finally:
        await database.close()
    assert [tuple(row) for row in keys] == [("key_1", "abc")]
    assert counts == [0, 0]
