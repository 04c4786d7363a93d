"""The usage page shows known rows correctly: the bars of each day, the tables and the CSV."""

import csv
import io
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from stoker.base.ids import Prefix, new_id
from tests.demo.console.conftest import Opener, account_key, sign_in
from tests.support.server import WITHOUT_MODELS, Server, running

if TYPE_CHECKING:
    from playwright.sync_api import Page

DAYS, DEPLOYMENTS = 3, 8
CREDIT = 1_000_000
STORAGE = 500_000
"""Cost of storage on the second day, in micro-credits."""
COUNTS = ("requests", "errors", "mirrored", "input_tokens", "output_tokens", "images",
          "audio_ms", "video_ms")  # fmt: skip
# The rows are written into the server's SQLite.
pytestmark = pytest.mark.one_machine


def cost(day: int, number: int) -> int:
    return (number + 1) * (day + 1) * CREDIT


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, httpx.Client, str]]:
    """Runs a server with an account that has usage of eight deployments on three days. Yields the
    server, a client and the first day.
    """
    with running(tmp_path_factory.mktemp("used") / "data", **WITHOUT_MODELS) as server:
        client = server.account("used")
        made = client.post("/v1/api-keys", json={"scope": "account", "name": "shop <b>"})
        account, key = client.get("/v1/credits").json()["account_id"], made.json()["id"]
        today = int(time.time()) // 86_400
        with closing(sqlite3.connect(server.data_dir / "stoker.db", timeout=60)) as db, db:
            for day in range(DAYS):
                hour = (today - DAYS + day) * 24 + 1
                for number in range(DEPLOYMENTS):
                    hold(db, account, hour, cost(day, number), number)
                    count(db, account, hour, number, key, requests=10 * (number + 1))
            hold(db, account, (today - DAYS + 1) * 24, STORAGE, None)
            count(db, account, hour, 0, None, requests=5, images=3)
        yield server, client, time.strftime("%Y-%m-%d", time.gmtime((today - DAYS) * 86_400))


def insert(db: sqlite3.Connection, table: str, **row: Any) -> None:
    places = ", ".join(f":{name}" for name in row)
    db.execute(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({places})", row)


def hold(
    db: sqlite3.Connection, account: str, hour: int, microcredits: int, number: int | None
) -> None:
    insert(
        db, "holdings", id=new_id(Prefix.USAGE), account_id=account, hour=hour,
        kind="storage" if number is None else "memory", subject_id=new_id(Prefix.ARTIFACT),
        deployment_id=None if number is None else f"dep_{number}", version_id=None,
        name=f"model {number}", started_ms=0, ended_ms=1, mib_ms=1024 * 3_600_000, peak_mib=1,
        price_version=1, is_final=1, charged_mib_ms=1024 * 3_600_000,
        charged_microcredits=microcredits, is_settled=1,
    )  # fmt: skip


def count(
    db: sqlite3.Connection, account: str, hour: int, number: int, key: str | None, **counts: int
) -> None:
    insert(
        db, "usage_counts", id=new_id(Prefix.USAGE), account_id=account, hour=hour, key_id=key,
        deployment_id=f"dep_{number}", version_id=None, model=f"model {number}",
        **dict.fromkeys(COUNTS, 0) | counts,
    )  # fmt: skip


@pytest.fixture
def page(opened_at: Opener, own: Any) -> "Page":
    server, client, _ = own
    page = sign_in(opened_at(f"{server.base_url}/console/"), account_key(client))
    page.goto(f"{server.base_url}/console/usage")
    page.locator(".bars-by-day").wait_for()
    return page


def cells(page: "Page", table: str) -> list[list[str]]:
    rows = page.get_by_role("region", name=table, exact=True).locator("tbody tr")
    rows.first.wait_for()
    return [row.locator("td").all_inner_texts() for row in rows.all()]


def test_bars_of_each_day_are_of_deployments(page: "Page", own: Any) -> None:
    days = page.locator(".bars-by-day g")
    assert days.count() == DAYS
    assert days.first.get_attribute("data-day") == own[2]
    for day in range(DAYS):
        bars = days.nth(day).evaluate(
            "day => [...day.querySelectorAll('rect')].map(one => [one.classList[1], "
            "Number(one.dataset.microcredits), Number(one.getAttribute('height'))])"
        )
        # The six most expensive deployments in descending order, then the sum of the other two,
        # then storage.
        own_parts = [(f"shade-{place}", cost(day, DEPLOYMENTS - 1 - place)) for place in range(6)]
        expected = [*own_parts, ("shade-7", cost(day, 0) + cost(day, 1))]
        if day == 1:
            expected.append(("shade-6", STORAGE))
        assert [tuple(bar[:2]) for bar in bars] == expected
        most = sum(cost(DAYS - 1, number) for number in range(DEPLOYMENTS))
        heights = [round(170 * microcredits / most, 6) for _, microcredits in expected]
        assert [round(bar[2], 6) for bar in bars] == heights
    legend = page.locator("figcaption.legend").inner_text()
    for name in ("model 7", "model 2", "others", "storage"):
        assert name in legend
    assert "model 1" not in legend


def test_tables(page: "Page") -> None:
    by_deployment = cells(page, "By deployment")
    assert [row[0] for row in by_deployment] == [
        *(f"model {number}" for number in reversed(range(DEPLOYMENTS))),
        "Artifact storage",
    ]
    assert by_deployment[0][2:5] == ["48.00", "3.000", "240"]
    assert by_deployment[-1][2:5] == ["0.5000", "1.000", "0"]
    shop, none = cells(page, "By key")
    assert (shop[0], shop[2]) == ("shop <b>", "1,080")
    assert none[0].startswith("No key")
    assert (none[2], none[6]) == ("5", "3")


def test_csv(page: "Page", own: Any) -> None:
    with page.expect_download() as saved:
        page.get_by_role("button", name="CSV by day and deployment").click()
    assert saved.value.suggested_filename.startswith("usage-by-day-deployment-")
    rows = list(csv.DictReader(io.StringIO(Path(saved.value.path()).read_text())))
    costs = {(row["start"][:10], row["deployment_id"]): row["microcredits"] for row in rows}
    assert len(costs) == DAYS * DEPLOYMENTS + 1
    for number in range(DEPLOYMENTS):
        assert costs[own[2], f"dep_{number}"] == str(cost(0, number))
