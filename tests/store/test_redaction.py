"""Database errors contain no data from clients, because they are logged."""

import logging
import traceback
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from stoker.store.db import Database
from tests.support import postgres as clusters

CANARY = "canary-of-a-prompt"
TABLE = "CREATE TABLE prompts (name VARCHAR(64) UNIQUE, number INTEGER NOT NULL)"
INSERT = text("INSERT INTO prompts (name, number) VALUES (:name, :number)")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with clusters.running() as cluster:
        yield cluster


@pytest.fixture(params=["sqlite", "postgresql"])
async def database(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Database]:
    is_sqlite = request.param == "sqlite"
    file = f"sqlite+aiosqlite:///{tmp_path}/stoker.db"
    opened = Database(file if is_sqlite else request.getfixturevalue("url"))
    async with opened.transaction() as session:
        await session.execute(text("DROP TABLE IF EXISTS prompts"))
        await session.execute(text(TABLE))
        await session.execute(INSERT, {"name": CANARY, "number": 1})
    yield opened
    await opened.close()


async def logged(database: Database, given: dict[str, Any]) -> str:
    """Returns the text that a log contains about an error and all of its causes."""
    with pytest.raises(DBAPIError) as caught:
        async with database.transaction() as session:
            await session.execute(INSERT, given)
    record = logging.makeLogRecord({"exc_info": (caught.type, caught.value, caught.tb)})
    formatted = logging.Formatter().formatException(record.exc_info)  # type: ignore[arg-type]
    return formatted + repr(caught.value) + "".join(traceback.format_exception(caught.value))


@pytest.mark.case(29)
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"name": CANARY, "number": 2}, "unique"),
        ({"name": f"another-{CANARY}", "number": None}, "null"),
        ({"name": f"{CANARY}\ud800", "number": 3}, ""),
        ({"name": f"{CANARY}\x00", "number": 4}, ""),
        ({"name": "x", "number": CANARY}, ""),
        ({"name": CANARY * 100, "number": 5}, "too long"),
    ],
)
async def test_no_value_is_in_an_error(
    database: Database, given: dict[str, Any], said: str
) -> None:
    if database.is_sqlite and said not in ("unique", "null"):
        # SQLite stores any such value, or an error is raised before the statement reaches it.
        return
    log = await logged(database, given)
    assert CANARY not in log
    if said != "too long":
        assert said in log.lower()


@pytest.mark.case(29)
async def test_outage(database: Database) -> None:
    """A statement that fails during execution does not report its parameters."""
    with pytest.raises(DBAPIError) as caught:
        async with database.transaction() as session:
            await session.execute(
                text("INSERT INTO nothing (name) VALUES (:name)"), {"name": CANARY}
            )
    assert CANARY not in "".join(traceback.format_exception(caught.value))
    assert "nothing" in str(caught.value)
