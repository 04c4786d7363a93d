"""Errors of databases repeat nothing that a client has sent: they are logged."""

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
    with clusters.running() as found:
        yield found


@pytest.fixture(params=["sqlite", "postgresql"])
async def database(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Database]:
    is_sqlite = request.param == "sqlite"
    file = f"sqlite+aiosqlite:///{tmp_path}/stoker.db"
    found = Database(file if is_sqlite else request.getfixturevalue("url"))
    async with found.transaction() as session:
        await session.execute(text("DROP TABLE IF EXISTS prompts"))
        await session.execute(text(TABLE))
        await session.execute(INSERT, {"name": CANARY, "number": 1})
    yield found
    await found.close()


async def logged(database: Database, given: dict[str, Any]) -> str:
    """What a log has of an error, with all errors that it was made of."""
    with pytest.raises(DBAPIError) as caught:
        async with database.transaction() as session:
            await session.execute(INSERT, given)
    record = logging.makeLogRecord({"exc_info": (caught.type, caught.value, caught.tb)})
    told = logging.Formatter().formatException(record.exc_info)  # type: ignore[arg-type]
    return told + repr(caught.value) + "".join(traceback.format_exception(caught.value))


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
        # It stores whatever it is given, or raises before it is asked.
        return
    told = await logged(database, given)
    assert CANARY not in told
    if said != "too long":
        assert said in told.lower()


@pytest.mark.case(29)
async def test_outage(database: Database) -> None:
    """The statement fails in the middle, with its parameters in hand."""
    with pytest.raises(DBAPIError) as caught:
        async with database.transaction() as session:
            await session.execute(
                text("INSERT INTO nothing (name) VALUES (:name)"), {"name": CANARY}
            )
    assert CANARY not in "".join(traceback.format_exception(caught.value))
    assert "nothing" in str(caught.value)
