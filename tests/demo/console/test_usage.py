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
TRIALS, TRIAL = 2, 250_000
"""Number of trials on the second day, and the cost of each one in micro-credits."""
CHARGES, CHARGE = 150, 7
"""Number of storage charges of one day, and the amount of each one in micro-credits."""
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
            for number in range(TRIALS):
                subject = (f"trial_{number}", "model 7 (trial)")
                hold(db, account, (today - DAYS + 1) * 24, TRIAL, number, subject)
            for number in range(CHARGES):
                charge(db, account, (today - 1) * 86_400 + 60 * number, number)
            count(db, account, hour, 0, None, requests=5, images=3)
        yield server, client, time.strftime("%Y-%m-%d", time.gmtime((today - DAYS) * 86_400))


def insert(db: sqlite3.Connection, table: str, **row: Any) -> None:
    places = ", ".join(f":{name}" for name in row)
    db.execute(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({places})", row)


def charge(db: sqlite3.Connection, account: str, at: int, number: int) -> None:
    insert(
        db, "transfers", id=new_id(Prefix.TRANSFER), key=f"storage {number}", kind="storage",
        source=f"account:{account}", target="revenue", microcredits=CHARGE, account_id=account,
        holding_id=None, note=None,
        created_at=time.strftime("%Y-%m-%d %H:%M:%S.000000", time.gmtime(at)),
    )  # fmt: skip


def hold(
    db: sqlite3.Connection,
    account: str,
    hour: int,
    microcredits: int,
    number: int | None,
    subject: tuple[str, str] | None = None,
) -> None:
    deployment, name = subject or (f"dep_{number}", f"model {number}")
    insert(
        db, "holdings", id=new_id(Prefix.USAGE), account_id=account, hour=hour,
        kind="storage" if number is None else "memory", subject_id=new_id(Prefix.ARTIFACT),
        deployment_id=None if number is None else deployment, version_id=None,
        name=name, started_ms=0, ended_ms=1, mib_ms=1024 * 3_600_000, peak_mib=1,
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
    days = page.locator(".bars-by-day g[data-day]")
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
        others = cost(day, 0) + cost(day, 1) + (TRIALS * TRIAL if day == 1 else 0)
        expected = [*own_parts, ("shade-7", others)]
        if day == 1:
            expected.append(("shade-6", STORAGE))
        assert [tuple(bar[:2]) for bar in bars] == expected
        most = sum(cost(DAYS - 1, number) for number in range(DEPLOYMENTS))
        heights = [round(170 * microcredits / most, 6) for _, microcredits in expected]
        assert [round(bar[2], 6) for bar in bars] == heights
    legend = page.locator("figcaption.legend").inner_text()
    for name in ("model 7 48.00", "model 2 18.00", "others 18.50", "storage 0.5000"):
        assert name in legend
    assert "model 1" not in legend
    # The axis ends at the cost of the most expensive day, which is also the number above its bar.
    assert page.locator(".bars-by-day .axis text").all_text_contents() == ["0", "54.00", "108"]
    assert [days.nth(day).locator("text").text_content() for day in range(DAYS)] == [
        "36.00",
        "73.00",
        "108",
    ]


def test_tables(page: "Page") -> None:
    by_deployment = cells(page, "By deployment")
    assert sorted(row[0] for row in by_deployment) == [
        "Artifact storage",
        *(f"model {number}" for number in range(DEPLOYMENTS)),
        "model 7 (2 trials)",
    ]
    rows = {row[0]: row[2:] for row in by_deployment}
    # Three GiB-hours are 3.221 GB-hours. Columns without a count are left out.
    assert rows["model 7"] == ["48.00", "3.221", "240", "0"]
    assert rows["model 7 (2 trials)"] == ["0.5000", "2.147", "0", "0"]
    assert rows["Artifact storage"] == ["0.5000", "1.074", "0", "0"]
    shop, none = cells(page, "By key")
    assert (shop[0], shop[2]) == ("shop <b>", "1,080")
    assert none[0].startswith("No key")
    assert none[2:] == ["5", "3"]


def test_charges_of_a_day_are_one_row(page: "Page") -> None:
    rows = cells(page, "Grants and charges")
    assert [row[1:] for row in rows] == [
        [f"Storage ({CHARGES} charges)", "-0.0011"],
        ["Opening balance", "1,000,000"],
    ]


def test_is_readable_on_a_phone(opened_at: Opener, own: Any) -> None:
    server, client, _ = own
    page = opened_at(f"{server.base_url}/console/usage", viewport={"width": 390, "height": 800})
    page.get_by_label("API key").fill(account_key(client))
    page.get_by_role("button", name="Sign in").click()
    text = page.locator(".bars-by-day text").first
    text.wait_for()
    assert text.evaluate("one => one.getBoundingClientRect().height") > 10
    cell = page.get_by_role("region", name="By deployment").locator("td").nth(2)
    assert "Credits" in cell.evaluate("one => getComputedStyle(one, '::before').content")
    box = cell.bounding_box()
    assert box and box["x"] + box["width"] <= 390


def test_csv(page: "Page", own: Any) -> None:
    with page.expect_download() as saved:
        page.get_by_role("button", name="CSV by day and deployment").click()
    assert saved.value.suggested_filename.startswith("usage-by-day-deployment-")
    rows = list(csv.DictReader(io.StringIO(Path(saved.value.path()).read_text())))
    costs = {(row["start"][:10], row["deployment_id"]): row["microcredits"] for row in rows}
    assert len(costs) == DAYS * DEPLOYMENTS + TRIALS + 1
    for number in range(DEPLOYMENTS):
        assert costs[own[2], f"dep_{number}"] == str(cost(0, number))
