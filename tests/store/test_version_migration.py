"""Deployments from before the introduction of versions have one after the migration."""

from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, text

from stoker.store import migrations
from stoker.store.db import Database

INSERTS = (
    "INSERT INTO accounts (id, name, created_at) VALUES ('acct_1', 'a', '2026-01-01 00:00:00')",
    """
    INSERT INTO deployments (
        id, account_id, model, pipeline, source, readiness, engine, device, dtype, min_replicas,
        max_replicas, idle_timeout_s, max_queue, config, memory_bytes, is_measured, desired,
        created_at, updated_at
    ) VALUES (
        'dep_01abc', 'acct_1', 'ner', 'fill-mask', '/models/a', 'hot', 'torch', 'cpu', 'bfloat16',
        1, 2, 60, 9, '{"speculation": "off"}', 1000, true, 'running',
        '2026-01-01 00:00:00', '2026-01-02 00:00:00'
    )
    """,
    """
    INSERT INTO deployment_events (id, deployment_id, status, reason, message, created_at)
    VALUES ('evt_1', 'dep_01abc', 'idle', 'created', '', '2026-01-01 00:00:00')
    """,
)


async def test_each_deployment_gets_its_first_version(tmp_path: Path) -> None:
    database = Database(f"sqlite+aiosqlite:///{tmp_path}/stoker.db")

    def before(connection: Connection) -> None:
        config = Config()
        config.set_main_option("script_location", str(Path(migrations.__file__).parent))
        config.attributes["connection"] = connection
        command.upgrade(config, "0010")
        for insert in INSERTS:
            connection.execute(text(insert))

    try:
        async with database.engine.begin() as connection:
            await connection.run_sync(before)
        await database.migrate()
        async with database.engine.connect() as connection:
            (version,) = (
                await connection.execute(text("SELECT * FROM deployment_versions"))
            ).mappings()
            (row,) = (await connection.execute(text("SELECT * FROM deployments"))).mappings()
            (events,) = (
                await connection.execute(text("SELECT count(*) FROM deployment_events"))
            ).one()
    finally:
        await database.close()
    assert row["live_version_id"] == version["id"] == "ver_01abc"
    assert (row["keep_s"], row["traffic"], events) == (600.0, None, 1)
    assert (version["deployment_id"], version["number"], version["state"]) == (
        "dep_01abc",
        1,
        "live",
    )
    assert (version["source"], version["dtype"], version["config"]) == (
        "/models/a",
        "bfloat16",
        '{"speculation": "off"}',
    )
    assert (version["memory_bytes"], version["status"]) == (1000, "completed")
