"""The price of background work in a new database, and in one with an older price list."""

from pathlib import Path

import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, text

from stoker.store import migrations
from stoker.store.db import Database
from stoker.tenancy.usage import money
from stoker.tenancy.usage.prices import PriceList
from tests.support.databases import ACCOUNT


@pytest.mark.parametrize(("is_new", "flex"), [(True, 500_000), (False, 1_000_000)])
async def test_prices_in_force_never_change(tmp_path: Path, is_new: bool, flex: int) -> None:
    database = Database(f"sqlite+aiosqlite:///{tmp_path}/stoker.db")

    def before(connection: Connection) -> None:
        config = Config()
        config.set_main_option("script_location", str(Path(migrations.__file__).parent))
        config.attributes["connection"] = connection
        command.upgrade(config, "0030")
        if not is_new:
            connection.execute(text(ACCOUNT))

    try:
        async with database.engine.begin() as connection:
            await connection.run_sync(before)
        await database.migrate()
        async with database.reading() as session:
            assert money.flex_rate((await PriceList.read(session)).first) == flex
    finally:
        await database.close()
