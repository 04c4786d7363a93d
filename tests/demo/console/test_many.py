"""Lists of ten thousand: shown at once, and gone through."""

import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from stoker.ids import Prefix, new_id
from tests.demo.console.conftest import Opener, account_key, sign_in
from tests.support.server import WITHOUT_MODELS, Server, running

if TYPE_CHECKING:
    from playwright.sync_api import Page

MANY = 10_000
SHOWN_MS = 2_000


def copied(data_dir: Path, table: str, **columns: Any) -> None:
    """Make many rows of a table's one, but for columns that `columns` has a way of making."""
    with closing(sqlite3.connect(data_dir / "stoker.db", timeout=60)) as database, database:
        database.row_factory = sqlite3.Row
        row = dict(database.execute(f"SELECT * FROM {table} ORDER BY rowid DESC").fetchone())
        places = ", ".join(f":{name}" for name in row)
        database.executemany(
            f"INSERT INTO {table} ({', '.join(row)}) VALUES ({places})",
            [
                {**row, **{name: make(number) for name, make in columns.items()}}
                for number in range(MANY)
            ],
        )


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, httpx.Client]]:
    """A server of its own, as nobody asks for so much over HTTP."""
    with running(tmp_path_factory.mktemp("many") / "data", **WITHOUT_MODELS) as server:
        client = server.account("many")
        client.post("/v1/model-artifacts", json={"display_name": "one"}).raise_for_status()
        data = server.data_dir
        copied(
            data,
            "api_keys",
            id=lambda _: new_id(Prefix.KEY),
            public_id=lambda _: secrets.token_hex(8),
            name=lambda number: f"key {number}",
        )
        copied(
            data,
            "artifacts",
            id=lambda _: new_id(Prefix.ARTIFACT),
            display_name=lambda number: f"artifact {number}",
        )
        yield server, client


@pytest.fixture
def page(opened_at: Opener, own: tuple[Server, httpx.Client]) -> "Page":
    server, client = own
    return sign_in(opened_at(f"{server.base_url}/console/"), account_key(client))


@pytest.mark.parametrize(("path", "name"), [("keys", "key"), ("artifacts", "artifact")])
def test_pages_of_a_list(page: "Page", own: Any, path: str, name: str) -> None:
    page.goto(f"{own[0].base_url}/console/{path}", wait_until="commit")
    row = page.locator("main tbody tr")
    row.nth(49).wait_for(timeout=SHOWN_MS)
    seen = set(row.locator("td:first-child").all_inner_texts())
    page.get_by_role("button", name="Older", exact=True).click()
    page.get_by_text("Page 2").wait_for()
    page.wait_for_function(
        "seen => !seen.includes(document.querySelector('main tbody td').innerText)",
        arg=sorted(seen),
        timeout=SHOWN_MS,
    )
    other = set(row.locator("td:first-child").all_inner_texts())
    assert len(other) == 50
    assert all(one.startswith(f"{name} ") for one in other)
    assert not seen & other
