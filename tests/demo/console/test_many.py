"""Lists of ten thousand: shown at once, and gone through."""

import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from stoker.demo.setup import MODELS
from stoker.ids import Prefix, new_id
from tests.demo.console.conftest import Opener, account_key, sign_in
from tests.support.deploying import deploy
from tests.support.server import WITHOUT_MODELS, Server, running

if TYPE_CHECKING:
    from playwright.sync_api import Page

MANY = 10_000
SHOWN_MS = 2_000
NOTHING_LOADED = {"readiness": "cold"}


def copied(data_dir: Path, table: str, **columns: Any) -> None:
    """Make many rows of a table's one, but for columns that `columns` has a way of making."""
    with closing(sqlite3.connect(data_dir / "stoker.db", timeout=60)) as database, database:
        database.row_factory = sqlite3.Row
        row = dict(database.execute(f"SELECT * FROM {table} ORDER BY rowid DESC").fetchone())  # noqa: S608
        places = ", ".join(f":{name}" for name in row)
        database.executemany(
            f"INSERT INTO {table} ({', '.join(row)}) VALUES ({places})",  # noqa: S608
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
        deploy(client, MODELS / "tiny-ner", "model", **NOTHING_LOADED)
        server.stop()
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
            live_upload_id=lambda _: None,
        )
        deployments = [new_id(Prefix.DEPLOYMENT) for _ in range(MANY)]
        versions = [new_id(Prefix.VERSION) for _ in range(MANY)]
        copied(
            data,
            "deployments",
            id=deployments.__getitem__,
            live_version_id=versions.__getitem__,
            model=lambda number: f"model-{number:05}",
        )
        copied(
            data,
            "deployment_versions",
            id=versions.__getitem__,
            deployment_id=deployments.__getitem__,
        )
        server.restart()
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
    page.get_by_role("button", name="Older").click()
    page.get_by_text("Page 2").wait_for()
    page.wait_for_function(
        "first => document.querySelector('main tbody td').innerText !== first",
        arg=row.first.locator("td").first.inner_text(),
        timeout=SHOWN_MS,
    ) if row.first.locator("td").first.inner_text() in seen else None
    other = set(row.locator("td:first-child").all_inner_texts())
    assert len(other) == 50
    assert not seen & other


def test_the_overview(page: "Page", own: Any) -> None:
    page.goto(f"{own[0].base_url}/console/", wait_until="commit")
    page.get_by_role("table", name="Deployments").get_by_role("link").nth(20).wait_for(
        timeout=SHOWN_MS
    )
    page.get_by_text(f"{MANY + 1} in all").wait_for()
    rows = page.locator("[data-row]")
    assert rows.count() < 100
    middle = "() => window.scrollTo(0, document.body.scrollHeight / 2)"
    page.evaluate(middle)
    page.wait_for_function(
        "() => +document.querySelector('[data-row]').getAttribute('aria-rowindex') > 4000",
        timeout=SHOWN_MS,
    )
    assert rows.count() < 100
    box = rows.nth(rows.count() // 2).bounding_box()
    assert box
    assert 0 <= box["y"] <= 900
    page.get_by_label("Filter by model or pipeline").fill("model-04242")
    page.get_by_role("link", name="model-04242").wait_for(timeout=SHOWN_MS)
    assert rows.count() == 1
